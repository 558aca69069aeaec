#!/usr/bin/env python3
"""A router whose memory limit comes near: what is new is refused, then what waits is sent away, the younger half
at each look; what runs goes on, the process stays, and serves all again when there is room."""

import os
import resource
import sys
import threading
import unittest

sys.path.insert(0, "tests/integration")

from cluster import DEADLINE, await_condition, greedy, ids_prompt, pb_grpc  # noqa: E402
from group_processes import Server, kill_all  # noqa: E402

import grpc  # noqa: E402

# Away from each other: a process takes address space for threads, too.
FLAGS = ("--memory_refuse_ratio=0.7", "--memory_shed_ratio=0.9")
CALM, REFUSES, SHEDS = 0.5, 0.8, 0.94  # Of the limit, what is taken.
NUM_WAITING = 5


def limit_memory(server, share):
    """A limit on its address space, of which it takes so much already."""
    with open("/proc/%d/statm" % server.process.pid, encoding="ascii") as f:
        taken = int(f.read().split()[0]) * os.sysconf("SC_PAGESIZE")
    _, hard = resource.prlimit(server.process.pid, resource.RLIMIT_AS)
    resource.prlimit(server.process.pid, resource.RLIMIT_AS, (int(taken / share), hard))


class Call(threading.Thread):
    """A request, read to its end."""

    def __init__(self, stub, request):
        super().__init__(daemon=True)
        self._call = stub.Generate(request, timeout=DEADLINE)
        self.num_tokens = 0
        self.code = self.details = None
        self.start()

    def run(self):
        try:
            for response in self._call:
                self.num_tokens += len(response.chunk.token_ids)
            self.code = grpc.StatusCode.OK
        except grpc.RpcError as error:
            self.details = dict(error.trailing_metadata()).get("grpc-status-details-bin", b"")
            self.code = error.code()

    def end(self):
        self._call.cancel()
        self.join(DEADLINE)

    def is_shed(self):
        return (self.code == grpc.StatusCode.RESOURCE_EXHAUSTED and b"OUT_OF_MEMORY" in self.details and
                b"google.rpc.RetryInfo" in self.details)


class MemoryTest(unittest.TestCase):
    def setUp(self):
        self.worker = Server("batond", "worker.log", "--kv_cache_bytes=64MiB")
        self.router = Server("baton-router", "router.log", "--unified=" + self.worker.grpc,
                             "--max_concurrent_requests=1", *FLAGS)
        self.addCleanup(lambda: kill_all([self.router, self.worker]))
        self.worker.start()
        # Another arena would take much address space at once.
        self.router.start(MALLOC_ARENA_MAX="1")
        for server in (self.worker, self.router):
            await_condition(server.is_ready, "the servers")
        channel = grpc.insecure_channel(self.router.grpc)
        self.addCleanup(channel.close)
        self.stub = pb_grpc.InferenceServiceStub(channel)

    def ask(self, max_tokens, n=1):
        request = greedy(ids_prompt(range(100, 120)), max_tokens)
        request.sampling.n = n
        return Call(self.stub, request)

    def ask_and_wait(self):
        call = self.ask(5)
        call.join(DEADLINE)
        return call

    def shed(self, requests):
        return self.router.metric("baton_shed_requests_total", 'requests="%s"' % requests)

    def num_waiting(self):
        return self.router.metric("baton_waiting_requests")

    def expect_progress(self, call):
        before = call.num_tokens
        await_condition(lambda: call.num_tokens > before, "tokens of what runs")

    def test_load_is_shed_before_the_limit_is_reached(self):
        limit_memory(self.router, CALM)
        await_condition(lambda: self.router.metric("baton_memory_used_bytes") <
                        0.7 * self.router.metric("baton_memory_limit_bytes"), "a look")
        self.assertEqual(self.ask_and_wait().code, grpc.StatusCode.OK)
        running = self.ask(3000, n=128)  # More than the worker makes in the time.
        self.expect_progress(running)
        waiting = [self.ask(5) for _ in range(NUM_WAITING)]
        await_condition(lambda: self.num_waiting() == NUM_WAITING, "a queue")

        limit_memory(self.router, REFUSES)
        refused = []

        def is_refused():
            refused.append(self.ask(5))
            refused[-1].join(0.2)  # One that is not refused waits.
            return refused[-1].is_shed()

        seconds = await_condition(is_refused, "a refusal")
        for call in refused:
            call.end()
        await_condition(lambda: self.num_waiting() == NUM_WAITING, "the queue, which stays")
        self.assertEqual(self.shed("waiting"), 0)
        await_condition(lambda: self.shed("new") == 1, "its count")
        self.expect_progress(running)

        limit_memory(self.router, SHEDS)
        for call in waiting:
            call.join(DEADLINE)
            self.assertTrue(call.is_shed(), call.code)
        await_condition(lambda: self.shed("waiting") == NUM_WAITING, "their count")
        self.expect_progress(running)
        self.assertIsNone(running.code)

        limit_memory(self.router, CALM)
        running.end()
        freed = await_condition(lambda: self.ask_and_wait().code == grpc.StatusCode.OK, "room")
        self.assertIsNone(self.router.process.poll())
        print("refused after %.2f s, served again after %.2f s" % (seconds, freed))


if __name__ == "__main__":
    unittest.main()
