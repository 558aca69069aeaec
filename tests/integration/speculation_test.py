#!/usr/bin/env python3
"""Drafts and steps in flight change no token of a real cluster, whatever they are on
either side of a transfer; and most drafts of the demo model are right."""

import unittest

from cluster import DEADLINE, Cluster, await_condition, golden, greedy, ids_prompt, pb, pb_grpc

import grpc

NUM_REQUESTS = 12
FLAGS = ("--num_draft_tokens=0,--async_scheduling=false",
         "--num_draft_tokens=3,--adaptive_verification=false",
         "--num_draft_tokens=5,--pipeline_depth=3")


def request_number(i):
    """Prompts that fill a block, or nearly, or not at all; half of them sampled."""
    ids = golden("stories_1500")["ids"]
    request = greedy(ids_prompt(ids[31 * i:31 * i + 57 + i]), 40)
    if i % 2:
        request.sampling.CopyFrom(pb.SamplingParams(temperature=0.8, top_p=0.9, seed=i))
    return request


def answers_of(flags):
    """The tokens with their log-probabilities of every request, all at once, and the
    share of first drafts that were right."""
    cluster = Cluster("--worker_flags=--kv_cache_bytes=64MiB," + flags)
    try:
        with grpc.insecure_channel(cluster.router) as channel:
            stub = pb_grpc.InferenceServiceStub(channel)
            calls = [stub.Generate(request_number(i), timeout=DEADLINE) for i in range(NUM_REQUESTS)]
            answers = [[pair for response in call if response.WhichOneof("event") == "chunk"
                        for pair in zip(response.chunk.token_ids, response.chunk.logprobs)]
                       for call in calls]
        await_condition(cluster.is_idle, "every block free")
        verified = cluster.worker_metric("baton_drafts_verified_total", 'position="1"')
        accepted = cluster.worker_metric("baton_drafts_accepted_total", 'position="1"')
        return answers, accepted / verified if verified else None
    finally:
        cluster.stop()


class SpeculationTest(unittest.TestCase):
    def test_drafts_and_depth_change_no_token(self):
        plain, rate = answers_of(FLAGS[0])
        self.assertIsNone(rate)
        self.assertEqual([len(answer) for answer in plain], [40] * NUM_REQUESTS)
        for flags in FLAGS[1:]:
            answers, rate = answers_of(flags)
            self.assertEqual(answers, plain, flags)
            print("%s: %.1f %% of the first drafts were right" % (flags, 100 * rate))
            self.assertGreater(rate, 0.3)


if __name__ == "__main__":
    unittest.main()
