#!/usr/bin/env python3
"""Logs that cannot be written cost lines, and no request anything."""

import os
import statistics
import sys
import time
import unittest

sys.path.insert(0, "tests/integration")

from cluster import DEADLINE, await_condition, golden, greedy, ids_prompt, pb_grpc  # noqa: E402
from group_processes import Server, kill_all  # noqa: E402

import grpc  # noqa: E402

NUM_REQUESTS = 400
TOKENS = 12


def request_number(i):
    ids = golden("stories_1500")["ids"]
    return greedy(ids_prompt(ids[i % 50:i % 50 + 40]), TOKENS)


def drain(pipe):
    os.set_blocking(pipe, False)
    text = b""
    try:
        while True:
            text += os.read(pipe, 1 << 16)
    except BlockingIOError:
        return text


class LogsTest(unittest.TestCase):
    def setUp(self):
        # Every transition is a line.
        self.worker = Server("batond", "worker.log", "--kv_cache_bytes=64MiB", "--verbosity=2")
        self.router = Server("baton-router", "router.log", "--unified=" + self.worker.grpc, "--verbosity=2")
        self.addCleanup(lambda: kill_all([self.router, self.worker]))

    def serve(self, stderr):
        """Starts both with that log, or their usual one; every answer, and seconds between tokens."""
        for server in (self.worker, self.router):
            server.start(stderr)
        for server in (self.worker, self.router):
            await_condition(server.is_ready, "the servers")
        return self.ask()

    def ask(self):
        answers, gaps = [], []
        with grpc.insecure_channel(self.router.grpc) as channel:
            stub = pb_grpc.InferenceServiceStub(channel)
            for i in range(NUM_REQUESTS):
                tokens, last = [], None
                for response in stub.Generate(request_number(i), timeout=DEADLINE):
                    if response.WhichOneof("event") != "chunk":
                        continue
                    now = time.monotonic()
                    gaps += [now - last] if last else []
                    last = now
                    tokens.extend(response.chunk.token_ids)
                answers.append(tokens)
        self.assertTrue(all(len(tokens) == TOKENS for tokens in answers))
        return answers, gaps

    def stop(self):
        kill_all([self.router, self.worker])

    def report(self, name, gaps):
        print("%s: seconds between tokens p50 %.5f p99 %.5f" %
              (name, statistics.median(gaps), statistics.quantiles(gaps, n=100)[98]))

    def test_a_full_disk_and_a_reader_who_stands_still(self):
        expected, gaps = self.serve(None)
        self.report("a file", gaps)
        self.stop()

        with open("/dev/full", "w", encoding="utf-8") as full:
            answers, gaps = self.serve(full)
        self.report("a full disk", gaps)
        self.assertEqual(answers, expected)
        self.stop()

        reader, writer = os.pipe()
        self.addCleanup(os.close, reader)
        self.addCleanup(os.close, writer)
        answers, gaps = self.serve(writer)
        self.report("a pipe that nobody reads", gaps)
        self.assertEqual(answers, expected)
        drain(reader)
        self.ask()
        self.assertIn(b" lines of log were lost", drain(reader))


if __name__ == "__main__":
    unittest.main()
