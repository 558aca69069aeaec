#!/usr/bin/env python3
"""Short requests, cancels and peers that come and go: every answer is the undisturbed one, all counters
balance, and memory stays flat. SOAK_SECONDS=3600 runs for an hour."""

import os
import random
import signal
import statistics
import sys
import threading
import time
import unittest

sys.path.insert(0, "tests/integration")

from cluster import DEADLINE, await_condition, await_trims, golden, greedy, ids_prompt, pb, pb_grpc, trims  # noqa: E402
from failover_test import Pools  # noqa: E402

import grpc  # noqa: E402

SECONDS = float(os.environ.get("SOAK_SECONDS", "120"))
NUM_CLIENTS = 16
NUM_KINDS = 40
CANCELS = 0.02  # Of the requests of the disturbed part.
CALM_SECONDS, DISTURBED_SECONDS = 4, 8  # Of a round.
# Rounds between two looks at memory. Each waits until idle processes have given theirs back, some ten seconds.
ROUNDS_A_LOOK = max(1, int(SECONDS / 300))
FLAGS = ("--kv_checksums", "--num_draft_tokens=0")
# What a process may grow by after its first quarter, an allocator's arenas included. The slope is reported.
MAX_GROWTH_BYTES = 16 << 20


def request_number(ids, i):
    """Short, and all different."""
    request = greedy(ids_prompt(ids[11 * i:11 * i + 1 + 9 * i % 131]), 1 + i % 7)
    if i % 2:
        request.sampling.CopyFrom(pb.SamplingParams(temperature=0.9, top_p=0.9, seed=i))
    if i % 5 == 0:
        request.sampling.n = 2
    if i % 8 == 0:
        request.sampling.repetition_penalty = 1.2
    return request


REQUESTS = [request_number(golden("stories_1500")["ids"], i) for i in range(NUM_KINDS)]


class Answer:
    """What a call said; `code` is None while it is none."""

    def __init__(self):
        self.tokens = {}
        self.code = None

    def take(self, response):
        if response.WhichOneof("event") != "chunk":
            return
        sample = self.tokens.setdefault(response.chunk.sample_index, [])
        assert response.chunk.first_token_index == len(sample), "a token doubled or missing"
        sample += response.chunk.token_ids

    def num_tokens(self):
        return sum(len(sample) for sample in self.tokens.values())


class Clients:
    """Requests without pause from so many threads, for a part of the soak."""

    def __init__(self, stub, expected, cancels):
        self._stub, self._expected, self._cancels = stub, expected, cancels
        self._stop = threading.Event()
        self._mutex = threading.Lock()
        self.codes = {}
        self.num_prompt_tokens = self.num_tokens = 0
        self.wrong = []
        self.errors = set()  # What was said of calls that nobody cancelled.
        self._threads = [threading.Thread(target=self._run, args=(random.Random(i),), daemon=True)
                         for i in range(NUM_CLIENTS)]
        for thread in self._threads:
            thread.start()

    def _run(self, rng):
        while not self._stop.is_set():
            kind = rng.randrange(NUM_KINDS)
            # A cancelled one is cancelled at once, or after so many messages.
            self._count(kind, self._call(kind, rng.randrange(4) if rng.random() < self._cancels else None))

    def _call(self, kind, cancel_after):
        answer = Answer()
        call = self._stub.Generate(REQUESTS[kind], timeout=DEADLINE)
        try:
            for number, response in enumerate(call):
                if number == cancel_after:
                    call.cancel()
                answer.take(response)
            answer.code = grpc.StatusCode.OK
        except grpc.RpcError as error:
            answer.code = error.code()
            if answer.code != grpc.StatusCode.CANCELLED:
                self.errors.add("%s: %s" % (answer.code.name, error.details()))
        return answer

    def _count(self, kind, answer):
        with self._mutex:
            self.codes[answer.code] = self.codes.get(answer.code, 0) + 1
            self.num_prompt_tokens += len(REQUESTS[kind].prompt.token_ids.ids)
            self.num_tokens += answer.num_tokens()
            if answer.code == grpc.StatusCode.OK and answer.tokens != self._expected[kind]:
                self.wrong.append((kind, answer.tokens))

    def num_requests(self):
        return sum(self.codes.values())

    def go_on_for(self, seconds):
        self._stop.wait(seconds)

    def end(self):
        self._stop.set()
        for thread in self._threads:
            thread.join(DEADLINE)
            assert not thread.is_alive(), "a stream hangs"


def rss_bytes(server):
    with open("/proc/%d/statm" % server.process.pid, encoding="ascii") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def slope(points):
    """Least squares, y by x."""
    mean_x, mean_y = (statistics.fmean(values) for values in zip(*points))
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0


class Soak(unittest.TestCase):
    def setUp(self):
        self.pools = Pools(*FLAGS)
        self.addCleanup(self.pools.end)
        channel = grpc.insecure_channel(self.pools.router.grpc)
        self.addCleanup(channel.close)
        self.stub = pb_grpc.InferenceServiceStub(channel)
        self.expected = []
        for request in REQUESTS:
            answer = Answer()
            for response in self.stub.Generate(request, timeout=DEADLINE):
                answer.take(response)
            self.expected.append(answer.tokens)
        # These are never restarted; the others of their pools come and go.
        self.lasting = {"router": self.pools.router, "prefill": self.pools.prefill[0],
                        "decode": self.pools.decode[0]}
        self.rotations = {"drained": 0, "killed": 0}
        self.codes = {}
        self.num_requests = 0
        self.trims_at_end = []

    def test_all_is_accounted_for_and_memory_is_flat(self):
        start = time.monotonic()
        memory = {name: [] for name in self.lasting}
        while time.monotonic() - start < SECONDS:
            for _ in range(ROUNDS_A_LOOK):
                self.run_calm_part()
                self.run_disturbed_part()
            await_trims(self.pages(), self.trims_at_end)
            for name, server in self.lasting.items():
                memory[name].append((time.monotonic() - start, self.num_requests, rss_bytes(server)))
        print("%d requests in %.0f s: %s; peers %s" %
              (self.num_requests, time.monotonic() - start,
               {code.name: count for code, count in self.codes.items()}, self.rotations))
        self.assertGreater(min(self.rotations.values()), 0)
        self.assertGreater(self.codes[grpc.StatusCode.CANCELLED], 0)
        for name, points in memory.items():
            self.judge_memory(name, points[len(points) // 4:])

    def pages(self):
        return [server.url for server in self.lasting.values()]

    def judge_memory(self, name, points):
        growth = points[-1][2] - points[0][2]
        print("%s: RSS %.1f MiB, %+.1f KiB a minute, %+.1f KiB in 10^4 requests" %
              (name, points[-1][2] / 2**20, slope([(t / 60, rss / 2**10) for t, _, rss in points]),
               slope([(requests / 1e4, rss / 2**10) for _, requests, rss in points])))
        self.assertLess(growth, MAX_GROWTH_BYTES, name)

    def run_calm_part(self):
        """Nothing is cancelled or lost: each token is counted once wherever it passes."""
        before = self.counters()
        clients = Clients(self.stub, self.expected, cancels=0)
        clients.go_on_for(CALM_SECONDS)
        self.finish(clients)
        self.assertEqual(set(clients.codes), {grpc.StatusCode.OK})
        counted = {name: value - before[name] for name, value in self.counters().items()}
        self.assertEqual(counted, {
            "router requests": clients.num_requests(),
            "router prompt tokens": clients.num_prompt_tokens,
            "router tokens": clients.num_tokens,
            "prefill prompt tokens": clients.num_prompt_tokens,
            "decode tokens": clients.num_tokens,
            "damaged blocks": 0,
        })

    def counters(self):
        def of(servers, name, label=""):
            return sum(server.metric(name, label) for server in servers)
        pools = self.pools
        return {
            "router requests": of([pools.router], "baton_requests_total", 'outcome="ok"'),
            "router prompt tokens": of([pools.router], "baton_prompt_tokens_total"),
            "router tokens": of([pools.router], "baton_generated_tokens_total"),
            "prefill prompt tokens": of(pools.prefill, "baton_prompt_tokens_total"),
            "decode tokens": of(pools.decode, "baton_generated_tokens_total"),
            "damaged blocks": of(pools.workers, "baton_kv_damaged_blocks_total"),
        }

    def run_disturbed_part(self):
        """Some are cancelled while a peer leaves, in order or not, and comes back."""
        clients = Clients(self.stub, self.expected, CANCELS)
        clients.go_on_for(DISTURBED_SECONDS / 4)
        rotation = sum(self.rotations.values())
        victim = (self.pools.prefill, self.pools.decode)[rotation // 2 % 2][1]
        drains = rotation % 2 == 0
        victim.kill(signal.SIGTERM if drains else signal.SIGKILL)
        self.assertEqual(victim.end(), 0 if drains else -signal.SIGKILL)
        self.rotations["drained" if drains else "killed"] += 1
        clients.go_on_for(DISTURBED_SECONDS / 4)
        self.pools.restart(victim)
        clients.go_on_for(DISTURBED_SECONDS / 2)
        self.finish(clients)

    def finish(self, clients):
        clients.end()
        self.trims_at_end = trims(self.pages())
        self.assertEqual(clients.wrong, [])
        self.assertEqual(clients.errors, set())
        await_condition(self.all_is_zero, "every gauge at 0")
        for code, count in clients.codes.items():
            self.codes[code] = self.codes.get(code, 0) + count
        self.num_requests += clients.num_requests()

    def all_is_zero(self):
        gauges = ("baton_running_requests", "baton_waiting_requests", "baton_kv_utilization_ratio",
                  "baton_inflight_tokens", "baton_kv_transfers")
        busy_blocks = ("owned", "exported", "importing", "deferred")
        return (all(self.pools.router.metric(name) == 0 for name in gauges[:2]) and
                all(worker.metric(name) == 0 for worker in self.pools.workers for name in gauges) and
                all(worker.metric("baton_kv_blocks", 'state="%s"' % state) == 0
                    for worker in self.pools.workers for state in busy_blocks))


if __name__ == "__main__":
    unittest.main()
