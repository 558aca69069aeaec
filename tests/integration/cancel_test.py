#!/usr/bin/env python3
"""Ten thousand cancels at random times against a router, a prefill and a decode server: no block, no slot and
no memory stays behind, and what a cancel leaves is free again within two steps. NUM_CANCELS=... takes more."""

import os
import queue
import random
import threading
import time
import unittest

import grpc

from cluster import (DEADLINE, Cluster, await_condition, await_trims, buckets, golden, greedy, ids_prompt, pb_grpc,
                     percentile, resident, trims)

NUM_CANCELS = int(os.environ.get("NUM_CANCELS", "10000"))
NUM_WARM = 1000
CONCURRENCY = 64
PAUSE = threading.Event()  # Never set.
PHASES = ("queued", "prefill", "transfer", "decode")
# How the calls are: prompt tokens, tokens of the answer, and when they are cancelled: after so many seconds
# at most, or with a token of the answer, or, behind the last of these, at their end.
KINDS = (((5, 400), 0.0, None), ((5, 400), 0.05, None), ((1100, 60), 0.02, None), ((1100, 60), 0.3, None),
         ((40, 400), 0.3, None), ((5, 60), None, 30), ((40, 60), None, 60), ((20, 3), None, 4))


def own_memory(pid):
    """KiB resident, but for shared memory: of a pool that a process reads more and more becomes resident."""
    return resident(pid) - resident(pid, "RssShmem")


class Storm:
    """So many clients at once make calls until `count` were made; each ends as `run` says."""

    def __init__(self, count, seed, run):
        self.chance, self.ends, self.errors = random.Random(seed), {}, []
        self._left, self._run, self._lock = count, run, threading.Lock()
        self._cancels = queue.PriorityQueue()
        canceller = threading.Thread(target=self._cancel)
        clients = [threading.Thread(target=self._client, args=(i,)) for i in range(CONCURRENCY)]
        for thread in [canceller] + clients:
            thread.start()
        for client in clients:
            client.join()
        self._cancels.put((float("inf"), 0, None))
        canceller.join()

    def cancel_later(self, call, seconds):
        self._cancels.put((time.monotonic() + seconds, id(call), call))

    def _client(self, number):
        chance = random.Random("%d %d" % (self.chance.random() * 2 ** 32, number))
        while True:
            with self._lock:
                if self._left == 0 or self.errors:
                    return
                self._left -= 1
            try:
                end = self._run(self, chance)
            except Exception as error:  # pylint: disable=broad-except
                self.errors.append(error)
                return
            with self._lock:
                self.ends[end] = self.ends.get(end, 0) + 1

    def _cancel(self):
        while True:
            when, number, call = self._cancels.get()
            wait = when - time.monotonic()
            if call is None and self._cancels.empty():
                return
            if wait > 0.001:  # An earlier one may come.
                self._cancels.put((when, number, call))
                PAUSE.wait(min(wait, 0.002))
            elif call is not None:
                call.cancel()


class CancelTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster("--worker_flags=--kv_cache_bytes=64MiB,--max_running_requests=24",
                              "--router_flags=--max_concurrent_requests=64")
        cls.channel = grpc.insecure_channel(cls.cluster.router)
        cls.stub = pb_grpc.InferenceServiceStub(cls.channel)
        cls.ids = golden("stories_1500")["ids"]

    @classmethod
    def tearDownClass(cls):
        cls.channel.close()
        cls.cluster.stop()

    def request(self, chance):
        (length, max_tokens), seconds, tokens = chance.choice(KINDS)
        start = chance.randrange(len(self.ids) - length)
        return greedy(ids_prompt(self.ids[start:start + length]), max_tokens), seconds, tokens

    def call_and_cancel(self, storm, chance):
        request, seconds, tokens = self.request(chance)
        call = self.stub.Generate(request, timeout=DEADLINE)
        if seconds is not None:
            storm.cancel_later(call, seconds * chance.random())
        left = chance.randint(1, tokens or 1)
        finished = False
        try:
            for response in call:
                finished = response.WhichOneof("event") == "finished"
                left -= len(response.chunk.token_ids)
                if tokens is not None and left <= 0:
                    call.cancel()
        except grpc.RpcError as error:
            self.assertEqual(error.code(), grpc.StatusCode.CANCELLED)
        call.cancel()
        return "finished" if finished else "cancelled"

    def late_call(self, _, chance):
        request, _, _ = self.request(chance)
        try:
            for _ in self.stub.Generate(request, timeout=0.4 * chance.random()):
                pass
            return "ok"
        except grpc.RpcError as error:
            return error.code().name.lower()

    def storm(self, run, count, seed):
        storm = Storm(count, seed, run)
        self.assertEqual(storm.errors, [])
        return storm.ends

    def await_nothing_left(self):
        await_condition(self.cluster.is_idle, "idle workers")
        await_condition(lambda: self.cluster.metric("router", "baton_running_requests") == 0 and
                        self.cluster.metric("router", "baton_waiting_requests") == 0, "an idle router")
        for worker in self.cluster.workers:
            for state in ("owned", "exported", "importing", "deferred"):
                self.assertEqual(self.cluster.metric(worker, "baton_kv_blocks{", 'state="%s"' % state), 0, state)

    def memory_behind_all(self):
        """Of each process, once it has given back what it keeps: ten seconds behind its last request."""
        pages = [self.cluster.url(process["name"]) for process in self.cluster.processes]
        before = trims(pages)
        self.await_nothing_left()
        await_trims(pages, before)
        return {process["name"]: own_memory(process["pid"]) for process in self.cluster.processes}

    def aborted(self):
        return {phase: self.cluster.worker_metric("baton_aborted_requests_total", 'phase="%s"' % phase)
                for phase in PHASES}

    def report_frees(self, what):
        for worker in self.cluster.workers:
            page = self.cluster.page(worker)
            steps = buckets(page, "baton_abort_to_free_steps")
            seconds = buckets(page, "baton_abort_to_free_seconds")
            print("%s: %s: %d had blocks; free again within p50 %g, p99 %g steps; p50 %g, p99 %g ms" % (
                what, worker, steps[-1][1], percentile(steps, 0.5), percentile(steps, 0.99),
                1000 * percentile(seconds, 0.5), 1000 * percentile(seconds, 0.99)))
            self.assertGreater(steps[-1][1], 0)
            self.assertLessEqual(percentile(steps, 0.5), 2)

    def test_ten_thousand_cancels_leave_nothing_behind(self):
        self.storm(self.call_and_cancel, NUM_WARM, 1)
        before = self.memory_behind_all()
        start = time.monotonic()
        ends = self.storm(self.call_and_cancel, NUM_CANCELS - NUM_WARM, 2)
        seconds = time.monotonic() - start
        after = self.memory_behind_all()
        print("%d cancels in %.1f s, %.0f a second: %s; at the workers: %s" % (
            NUM_CANCELS - NUM_WARM, seconds, (NUM_CANCELS - NUM_WARM) / seconds, ends, self.aborted()))
        self.report_frees("cancels")
        self.assertGreater(ends["cancelled"], NUM_CANCELS / 2)
        self.assertGreater(ends["finished"], NUM_CANCELS / 100)
        for phase, count in self.aborted().items():
            self.assertGreater(count, NUM_CANCELS / 200, phase)
        for name, warm in before.items():
            print("memory of %s: %d KiB, %d when warm: %+.2f %%" % (
                name, after[name], warm, 100.0 * (after[name] - warm) / warm))
        pool = 64 << 10  # Of each worker, in shared memory.
        warm = sum(before.values()) + 2 * pool
        print("of all, with the workers' pools: %+.2f %%" % (100.0 * (sum(after.values()) + 2 * pool - warm) / warm))
        self.assertLessEqual(sum(after.values()) + 2 * pool, 1.02 * warm)

    def test_deadlines_pass_in_every_state_and_leave_nothing_behind(self):
        before = self.aborted()
        ends = self.storm(self.late_call, 600, 3)
        self.await_nothing_left()
        print("deadlines: %s; at the workers: %s" % (
            ends, {phase: count - before[phase] for phase, count in self.aborted().items()}))
        self.report_frees("with deadlines")
        self.assertGreater(ends["deadline_exceeded"], 100)
        self.assertEqual(set(ends) - {"ok", "deadline_exceeded", "resource_exhausted"}, set())


if __name__ == "__main__":
    unittest.main()
