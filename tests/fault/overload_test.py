#!/usr/bin/env python3
"""More requests than a decode server's KV pool holds: what fits is served at full speed, the rest is refused
at once with a time to come back, and nobody starves; a burst passes without a trace.

The figures depend on what else the machine does: they are printed, and their bounds here are generous."""

import os
import statistics
import sys
import threading
import time
import unittest

sys.path.insert(0, "tests/integration")

from cluster import DEADLINE, await_condition, golden, greedy, ids_prompt, pb_grpc  # noqa: E402
from group_processes import Server, kill_all  # noqa: E402

import grpc  # noqa: E402

SECONDS = float(os.environ.get("PART_SECONDS", "4"))
TOKENS = 60
CAPACITY = 16  # Requests that the decode server's blocks hold.
QUEUE = CAPACITY
FLAGS = ("--num_draft_tokens=0", "--max_running_requests=64")
MAX_WAIT_SECONDS = 30


def request_number(i):
    ids = golden("stories_1500")["ids"]
    return greedy(ids_prompt(ids[i % 30:i % 30 + 50]), TOKENS)


def retry_hint(error):
    details = dict(error.trailing_metadata()).get("grpc-status-details-bin", b"")
    return b"google.rpc.RetryInfo" in details


class Client(threading.Thread):
    """Asks again and again: each `period` seconds, or, refused, a little later."""

    def __init__(self, test, number, period):
        super().__init__(daemon=True)
        self._test, self._number, self._period = test, number, period
        self._over = threading.Event()
        self.ends = []  # (when, seconds that it took) of each that was served.
        self.num_refused = 0
        self.refusals_with_hint = 0
        self.failures = []
        self.start()

    def run(self):
        while not self._over.is_set():
            start = time.monotonic()
            served = self._ask(start)
            rest = (self._period if served else max(self._period, 0.5)) - (time.monotonic() - start)
            self._over.wait(max(rest, 0))

    def _ask(self, start):
        tokens = []
        try:
            for response in self._test.stub.Generate(request_number(self._number), timeout=DEADLINE):
                if response.WhichOneof("event") == "chunk":
                    tokens.extend(response.chunk.token_ids)
        except grpc.RpcError as error:
            if error.code() != grpc.StatusCode.RESOURCE_EXHAUSTED:
                self.failures.append(error)
            self.num_refused += 1
            self.refusals_with_hint += retry_hint(error)
            return False
        if tokens != self._test.expected[self._number % 30]:
            self.failures.append(tokens)
        self.ends.append((time.monotonic(), time.monotonic() - start))
        return True

    def stop(self):
        self._over.set()

    def end(self):
        self.stop()
        self.join(DEADLINE)
        assert not self.is_alive(), "a request hangs"


def rate(clients, start, end):
    """Requests served a second, between."""
    return sum(start <= when < end for client in clients for when, _ in client.ends) / (end - start)


class OverloadTest(unittest.TestCase):
    def setUp(self):
        # A request takes two blocks; the prefill server has room for all.
        self.prefill = Server("batond", "prefill.log", "--role=prefill", "--kv_blocks=256", *FLAGS)
        self.decode = Server("batond", "decode.log", "--role=decode", "--kv_blocks=%d" % (2 * CAPACITY), *FLAGS)
        self.router = Server("baton-router", "router.log", "--prefill=" + self.prefill.grpc,
                             "--decode=" + self.decode.grpc, "--max_concurrent_requests=%d" % (2 * CAPACITY),
                             "--max_queued_requests=%d" % QUEUE)
        servers = [self.prefill, self.decode, self.router]
        self.addCleanup(lambda: kill_all(servers))
        for server in servers:
            server.start()
        for server in servers:
            await_condition(server.is_ready, "the servers")
        channel = grpc.insecure_channel(self.router.grpc)
        self.addCleanup(channel.close)
        self.stub = pb_grpc.InferenceServiceStub(channel)
        self.expected = []
        for i in range(30):
            self.expected.append([token for response in self.stub.Generate(request_number(i), timeout=DEADLINE)
                                  if response.WhichOneof("event") == "chunk" for token in response.chunk.token_ids])

    def load(self, num_clients, period=0.0):
        return [Client(self, i, period) for i in range(num_clients)]

    def run_for(self, clients, seconds):
        """The rate of the second half."""
        start = time.monotonic()
        await_condition(lambda: time.monotonic() > start + seconds, "the time")
        return rate(clients, start + seconds / 2, start + seconds)

    def end(self, clients):
        for client in clients:
            client.stop()
        for client in clients:
            client.end()
            self.assertEqual(client.failures, [])

    def is_idle(self):
        return all(server.metric(name) == 0 for server in (self.prefill, self.decode, self.router) for name in
                   ("baton_running_requests", "baton_waiting_requests")) and self.decode.metric(
                       "baton_kv_utilization_ratio") == 0

    def test_four_times_what_fits(self):
        clients = self.load(CAPACITY)
        peak = self.run_for(clients, SECONDS)
        self.end(clients)
        self.assertEqual(sum(client.num_refused for client in clients), 0)

        # Twice what fits is inside, once waits, and the rest is refused.
        clients = self.load(4 * CAPACITY)
        overloaded = self.run_for(clients, SECONDS)
        await_condition(lambda: all(client.ends for client in clients), "each client's turn")
        self.end(clients)
        await_condition(self.is_idle, "every block free")
        refused = sum(client.num_refused for client in clients)
        waits = [seconds for client in clients for _, seconds in client.ends]
        print("peak %.1f requests/s, at 4x %.1f = %.0f %%; served %d, refused %d; longest %.2f s" %
              (peak, overloaded, 100 * overloaded / max(peak, 1), len(waits), refused, max(waits)))
        self.assertGreater(refused, 0)
        self.assertEqual(sum(client.refusals_with_hint for client in clients), refused)
        self.assertLess(max(waits), MAX_WAIT_SECONDS)
        self.assertGreater(overloaded, peak / 4)

    def test_a_burst_of_ten_times_as_many(self):
        clients = self.load(CAPACITY)
        peak = self.run_for(clients, SECONDS)
        self.end(clients)

        num_steady = 6
        period = num_steady / (0.3 * max(peak, 1))
        steady = self.load(num_steady, period)
        before = self.run_for(steady, SECONDS)
        burst = self.load(9 * num_steady, period)
        during = self.run_for(steady + burst, SECONDS)
        for client in burst:
            client.stop()
        over = time.monotonic()
        self.end(burst)
        await_condition(lambda: time.monotonic() > over + 4, "the time")
        after = rate(steady, over + 2, over + 4)
        self.end(steady)
        await_condition(self.is_idle, "every block free")
        times = [seconds for client in burst for _, seconds in client.ends]
        refused = sum(client.num_refused for client in steady + burst)
        print("requests/s: peak %.1f, steady %.1f, in the burst %.1f, two seconds behind it %.1f = %.0f %%; "
              "refused %d; of the burst's, median %.2f s, longest %.2f s" %
              (peak, before, during, after, 100 * after / max(before, 1), refused, statistics.median(times), max(times)))
        self.assertLess(max(times), MAX_WAIT_SECONDS)
        self.assertGreater(after, before / 2)


if __name__ == "__main__":
    unittest.main()
