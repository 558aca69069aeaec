#!/usr/bin/env python3
"""Clients that never read, beside some that do: the ones are paused and then cut, the others
get their tokens, and nothing is left."""

import struct
import threading
import unittest

import grpc

from cluster import DEADLINE, Cluster, await_condition, golden, greedy, ids_prompt, pb, pb_grpc

NUM_STUCK = 10
NUM_HEALTHY = 6
# Of the pools: stuck ones must give way.
MAX_RUNNING = 4


def healthy_request(i):
    ids = golden("stories_1500")["ids"]
    return greedy(ids_prompt(ids[11 * i:11 * i + 40 + i]), 40)


def stuck_request(i):
    ids = golden("stories_1500")["ids"]
    request = greedy(ids_prompt(ids[7 * i:7 * i + 30]), 3500)
    request.logprobs.top = 20  # Large messages.
    return request


class SlowReadersTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster("--worker_flags=--kv_cache_bytes=96MiB,--max_running_requests=%d" % MAX_RUNNING,
                              "--router_flags=--slow_reader_timeout=5s")
        cls.channel = grpc.insecure_channel(cls.cluster.router)
        cls.stub = pb_grpc.InferenceServiceStub(cls.channel)
        # Takes little in advance.
        cls.small_channel = grpc.insecure_channel(cls.cluster.router, options=[
            ("grpc.use_local_subchannel_pool", 1), ("grpc.http2.bdp_probe", 0),
            ("grpc.http2.lookahead_bytes", 4096)])
        cls.small_stub = pb_grpc.InferenceServiceStub(cls.small_channel)

    @classmethod
    def tearDownClass(cls):
        cls.channel.close()
        cls.small_channel.close()
        cls.cluster.stop()

    def generate(self, i):
        ids, logprobs = [], []
        for response in self.stub.Generate(healthy_request(i), timeout=DEADLINE):
            ids += response.chunk.token_ids
            logprobs += [struct.pack("f", value) for value in response.chunk.logprobs]
        return ids, logprobs

    def generate_all(self):
        answers = [None] * NUM_HEALTHY

        def run(i):
            answers[i] = self.generate(i)

        threads = [threading.Thread(target=run, args=[i]) for i in range(NUM_HEALTHY)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return answers

    def test_stuck_clients_are_paused_and_cut_and_healthy_ones_are_as_alone(self):
        alone = [self.generate(i) for i in range(NUM_HEALTHY)]
        stuck = [self.small_stub.Generate(stuck_request(i), timeout=DEADLINE) for i in range(NUM_STUCK)]
        await_condition(lambda: self.cluster.metric("router", "baton_slow_readers_paused_total") > 0, "a pause")
        rounds = 0
        while self.cluster.metric("router", "baton_slow_readers_cut_total", "timeout") < NUM_STUCK:
            self.assertEqual(self.generate_all(), alone)
            rounds += 1
        self.assertGreaterEqual(self.cluster.metric("router", "baton_slow_readers_paused_total"), NUM_STUCK)
        self.assertEqual(self.cluster.metric("router", "baton_slow_readers_cut_total", "memory"), 0)
        self.assertEqual(self.cluster.worker_metric("baton_slow_readers_cut_total"), 0)
        for call in stuck:
            with self.assertRaises(grpc.RpcError) as caught:
                for _ in call:
                    pass
            self.assertEqual(caught.exception.code(), grpc.StatusCode.ABORTED)
            self.assertTrue(caught.exception.details().startswith("SLOW_READER"), caught.exception.details())
        await_condition(self.cluster.is_idle, "idle workers")
        await_condition(lambda: self.cluster.metric("router", "baton_stream_queued_bytes") == 0, "nothing queued")
        print("%d rounds of healthy clients beside the stuck ones" % rounds)


if __name__ == "__main__":
    unittest.main()
