#!/usr/bin/env python3
"""A worker in a cgroup whose limit is 1.1 times what it takes under a steady load, and a router in one of 128 MiB,
are asked for far more: what the limit does not let in is refused, and nobody is killed.

Needs root, and a cgroup that it may make. Ten minutes, or SECONDS."""

import os
import subprocess
import sys
import time
import unittest

sys.path.insert(0, "tests/integration")

from cluster import await_condition  # noqa: E402
from group_processes import Server, kill_all  # noqa: E402

SECONDS = float(os.environ.get("SECONDS", "600"))
NUM_RUNNING, NUM_CLIENTS = 32, 2048
KIND = ("--prompt_tokens=1500", "--max_tokens=16", "--n=4")  # What is asked for.
STEADY_SECONDS = 20 + SECONDS / 15
HEADROOM = 1.1
# A router takes 8 MiB: a tenth of that is less than the messages of one burst.
ROUTER_LIMIT = 128 << 20


class Cgroup:
    """A folder of version 1 or 2 that limits memory."""

    def __init__(self, name):
        self._is_v1 = os.path.exists("/sys/fs/cgroup/memory")
        top = "/sys/fs/cgroup/memory" if self._is_v1 else "/sys/fs/cgroup"
        self.folder = "%s/baton-test-%d-%s" % (top, os.getpid(), name)
        os.mkdir(self.folder)

    def _read(self, name):
        with open(os.path.join(self.folder, name), encoding="utf-8") as f:
            return f.read()

    def used(self):
        """Bytes that the system cannot take back at once."""
        stat = dict(line.split() for line in self._read("memory.stat").splitlines())
        cache = "total_inactive_file" if self._is_v1 else "inactive_file"
        return int(self._read("memory.usage_in_bytes" if self._is_v1 else "memory.current")) - int(stat[cache])

    def limit(self, num_bytes):
        name = "memory.limit_in_bytes" if self._is_v1 else "memory.max"
        with open(os.path.join(self.folder, name), "w", encoding="utf-8") as f:
            f.write(str(num_bytes))

    def kills(self):
        stat = self._read("memory.oom_control" if self._is_v1 else "memory.events")
        return int(dict(line.split() for line in stat.splitlines())["oom_kill"])

    def confine(self, command):
        return ["sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', self.folder, *command]

    def remove(self):
        os.rmdir(self.folder)


class MemoryLimitTest(unittest.TestCase):
    def start(self, binary, *flags):
        cgroup = Cgroup(binary)
        self.addCleanup(cgroup.remove)
        server = Server(binary, binary + ".log", *flags)
        server.command = cgroup.confine(server.command)
        server.start()
        self.addCleanup(kill_all, [server])
        return server, cgroup

    def load(self, seconds, *flags):
        """Asks for so long, again and again; returns the last run."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            run = subprocess.run(["deploy/bin/baton", "bench", "--router=" + self.router.grpc, *flags],
                                 stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
            self.assertIn("requests failed", run.stdout)
        return run

    def test_nobody_is_killed(self):
        # No bound but memory keeps requests out.
        worker, worker_cgroup = self.start("batond", "--role=unified", "--kv_cache_bytes=128MiB",
                                           "--max_running_requests=%d" % NUM_RUNNING, "--max_waiting_requests=16384")
        self.router, router_cgroup = self.start("baton-router", "--unified=" + worker.grpc,
                                                "--max_concurrent_requests=65536")
        await_condition(self.router.is_ready, "the router")
        # As many as run at once, so long that every block has been somebody's.
        self.load(STEADY_SECONDS, "--clients=%d" % NUM_RUNNING, "--requests=256", *KIND)
        print("steady: worker %d MiB, router %d" % (worker_cgroup.used() >> 20, router_cgroup.used() >> 20), flush=True)
        worker_cgroup.limit(int(HEADROOM * worker_cgroup.used()))
        router_cgroup.limit(ROUTER_LIMIT)
        print(self.load(SECONDS, "--clients=%d" % NUM_CLIENTS, "--requests=2048", *KIND).stdout)
        for server, cgroup in ((worker, worker_cgroup), (self.router, router_cgroup)):
            self.assertEqual(cgroup.kills(), 0, cgroup.folder)
            self.assertIsNone(server.process.poll(), server.log())
            refused, shed = (server.metric("baton_shed_requests_total", 'requests="%s"' % which)
                             for which in ("new", "waiting"))
            print("%s: %d MiB, refused %d, shed %d" % (cgroup.folder, cgroup.used() >> 20, refused, shed))
            self.assertGreater(refused, 0, "the limit was never near")
        # What it no longer needs, it gives back, and serves as ever.
        await_condition(lambda: self.load(0.1, "--clients=4", "--requests=8").returncode == 0, "service")


if __name__ == "__main__":
    unittest.main()
