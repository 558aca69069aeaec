"""The processes of one expert-parallel group, each by itself, and a router before them."""

import os
import random
import re
import signal
import socket
import subprocess

from cluster import DEADLINE, MODEL, await_condition, metric

import urllib.error
import urllib.request


def free_address():
    """Of a port below those that the kernel gives out by itself: while its server is away, nobody else gets it."""
    while True:
        port = random.randrange(10000, 32768)
        try:
            with socket.socket() as taken:
                taken.bind(("127.0.0.1", port))
            return "127.0.0.1:%d" % port
        except OSError:
            pass  # Somebody has it.


class Server:
    """A process that prints its endpoints when it serves, and can be started again at them."""

    def __init__(self, binary, log, *flags):
        self.grpc = free_address()
        self.http = free_address()
        self.command = ["deploy/bin/" + binary, "--model=" + MODEL, "--listen=" + self.grpc,
                         "--metrics_listen=" + self.http, *flags]
        self._log = os.path.join(os.environ["TEST_TMPDIR"], log)
        self.process = None

    def start(self, stderr=None, **environment):
        with open(self._log, "w", encoding="utf-8") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=stderr or log,
                                            env={**os.environ, **environment})

    def log(self):
        with open(self._log, encoding="utf-8") as f:
            return f.read()

    def is_ready(self):
        assert self.process.poll() is None, self.log()
        try:
            with urllib.request.urlopen("http://%s/readyz" % self.http, timeout=DEADLINE) as page:
                return page.status == 200
        except (urllib.error.URLError, OSError):
            return False

    def epochs(self):
        """Those of its group that have started, by its log."""
        return [int(epoch) for epoch in re.findall(r"] epoch (\d+) starts", self.log())]

    def ended(self, epoch):
        """The ranks by which that epoch ended, by its log; none: it hasn't."""
        found = re.search(r"] epoch %d of the worker's group ended, by ranks ([0-9. ]+):" % epoch, self.log())
        ranks = [[int(rank) for rank in part.split("..")] for part in found[1].split()] if found else []
        return {rank for part in ranks for rank in range(part[0], part[-1] + 1)}

    @property
    def url(self):
        return "http://%s/metrics" % self.http

    def metric(self, name, label=""):
        return metric(self.url, name, label)

    def kill(self, number=signal.SIGKILL):
        self.process.send_signal(number)

    def end(self):
        return self.process.wait(DEADLINE)


def kill_all(servers):
    for server in servers:
        if server.process.poll() is None:
            server.kill()
            server.end()


class Group:
    """`num_processes` batonds of role unified with `ep_size` ranks in all."""

    def __init__(self, num_processes, ep_size, *flags):
        self.local_ranks = ep_size // num_processes
        leader = free_address()
        self.workers = [
            Server("batond", "worker%d.log" % i, "--ep_size=%d" % ep_size, "--local_ranks=%d" % self.local_ranks,
                   "--rank_offset=%d" % (i * self.local_ranks), "--leader=" + leader, *flags)
            for i in range(num_processes)]
        # A stream that has begun outlives the group's end, however slow the machine.
        self.router = Server("baton-router", "router.log", "--worker_wait=60s",
                             "--unified=" + ",".join(w.grpc for w in self.workers))
        for server in [*self.workers, self.router]:
            server.start()
        self.await_ready()
        await_condition(self.router.is_ready, "the router")

    def ranks_of(self, worker):
        first = self.workers.index(worker) * self.local_ranks
        return set(range(first, first + self.local_ranks))

    def newest_epoch(self):
        return max(max(worker.epochs(), default=0) for worker in self.workers)

    def await_ready(self):
        return await_condition(lambda: all(worker.is_ready() for worker in self.workers), "the group")

    def kill(self):
        kill_all([self.router, *self.workers])

    def stop(self):
        for server in [self.router, *self.workers]:
            server.kill(signal.SIGTERM)
        assert [server.end() for server in [self.router, *self.workers]] == [0] * (1 + len(self.workers))
