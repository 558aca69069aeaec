#!/usr/bin/env python3
"""Prompts that begin as earlier ones did, over real pools: what is found of them, by whom, and that it
changes no token."""

import unittest

import grpc

from cluster import DEADLINE, Cluster, await_condition, greedy, ids_prompt, pb_grpc

BLOCK = 64


class PrefixCacheTest(unittest.TestCase):
    FLAGS = []
    SPLIT = True

    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster("--worker_flags=--kv_cache_bytes=64MiB", *cls.FLAGS)
        cls.channel = grpc.insecure_channel(cls.cluster.router)
        cls.stub = pb_grpc.InferenceServiceStub(cls.channel)

    @classmethod
    def tearDownClass(cls):
        await_condition(cls.cluster.is_idle, "idle workers")
        cls.channel.close()
        cls.cluster.stop()

    def ask(self, ids, max_tokens=8, **cache):
        """The answer's ids, and how many tokens of the prompt either pool found."""
        request = greedy(ids_prompt(ids), max_tokens)
        for field, value in cache.items():
            setattr(request.cache, field, value)
        answer = []
        for response in self.stub.Generate(request, timeout=DEADLINE):
            answer += response.chunk.token_ids
            usage = response.finished.usage
        await_condition(self.cluster.is_idle, "idle workers")
        return answer, usage.cached_tokens, usage.decode_cached_tokens

    def prompt(self, first, length=200):
        return [(first + i * i) % 4000 + 1 for i in range(length)]

    def test_whole_blocks_are_found_the_second_time(self):
        ids = self.prompt(1)
        hits = self.cluster.worker_metric("baton_prefix_cache_hit_tokens_total")
        cold, *found = self.ask(ids)
        self.assertEqual(found, [0, 0])
        warm, *found = self.ask(ids)
        self.assertEqual(found, [3 * BLOCK, 3 * BLOCK if self.SPLIT else 0])
        self.assertEqual(warm, cold)
        self.assertEqual(self.cluster.worker_metric("baton_prefix_cache_hit_tokens_total") - hits, sum(found))
        self.assertGreater(self.cluster.worker_metric("baton_prefix_cache_blocks"), 0)
        for source in ("local_compute", "prefix_cache", "kv_transfer"):
            label = 'source="%s"' % source
            tokens = self.cluster.worker_metric("baton_prompt_tokens_by_source_total", label)
            self.assertEqual(tokens > 0, self.SPLIT or source != "kv_transfer", source)

    def test_the_next_turn_finds_the_answer_where_it_was_made(self):
        ids = self.prompt(2, 100)
        answer, *_ = self.ask(ids, 120)
        turn = ids + answer + [7, 8, 9]
        cold, *found = self.ask(turn, bypass=True)
        self.assertEqual(found, [0, 0])
        warm, *found = self.ask(turn)
        self.assertEqual(found, [BLOCK, 3 * BLOCK] if self.SPLIT else [3 * BLOCK, 0])
        self.assertEqual(warm, cold)

    def test_tenants_find_their_own(self):
        ids = self.prompt(3)
        for salt in ("a", "b"):
            _, *found = self.ask(ids, salt=salt)
            self.assertEqual(found, [0, 0], salt)
        _, *found = self.ask(ids, salt="a")
        self.assertEqual(found[0], 3 * BLOCK)

    def test_a_bypass_leaves_nothing(self):
        ids = self.prompt(4)
        self.ask(ids, bypass=True)
        _, *found = self.ask(ids)
        self.assertEqual(found, [0, 0])

    def test_a_salt_that_is_too_long_is_invalid(self):
        with self.assertRaises(grpc.RpcError) as caught:
            self.ask(self.prompt(5), salt="s" * 129)
        self.assertEqual(caught.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)


class UnifiedPrefixCacheTest(PrefixCacheTest):
    FLAGS = ["--unified"]
    SPLIT = False


if __name__ == "__main__":
    unittest.main(verbosity=2)
