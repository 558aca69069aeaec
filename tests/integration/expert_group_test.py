#!/usr/bin/env python3
"""A request's tokens and log-probabilities are the same from one rank and from an
expert-parallel group of any size, with copies of experts and without, with drafts and
without, through a router that spreads requests over ranks."""

import unittest

from cluster import DEADLINE, Cluster, await_condition, golden, greedy, ids_prompt, pb, pb_grpc

import grpc

NUM_REQUESTS = 200
WORKER_FLAGS = "--kv_cache_bytes=64MiB,--max_batched_tokens=128,--max_chunk_tokens=128,--max_running_requests=16,"


def request_number(i):
    """Greedy and sampled, short and over a block, penalties, several samples, alternatives."""
    ids = golden("stories_1500")["ids"]
    request = greedy(ids_prompt(ids[7 * i:7 * i + 3 + 11 * i % 97]), 1 + 5 * i % 14)
    if i % 2:
        request.sampling.CopyFrom(pb.SamplingParams(temperature=0.8, top_p=0.9, seed=i))
    if i % 3 == 0:
        request.sampling.repetition_penalty = 1.2
    if i % 10 == 0:
        request.sampling.n = 3
    if i % 4 == 0:
        request.logprobs.top = 3
    return request


def answer_of(call):
    """Each sample's tokens, their log-probabilities and those of the alternatives."""
    samples = {}
    for response in call:
        if response.WhichOneof("event") != "chunk":
            continue
        chunk = response.chunk
        sample = samples.setdefault(chunk.sample_index, ([], [], []))
        sample[0].extend(chunk.token_ids)
        sample[1].extend(chunk.logprobs)
        sample[2].extend((tuple(top.token_ids), tuple(top.logprobs)) for top in chunk.top_logprobs)
    return samples


def answers_of(worker_flags, *flags):
    cluster = Cluster("--worker_flags=" + WORKER_FLAGS + worker_flags, *flags)
    try:
        with grpc.insecure_channel(cluster.router) as channel:
            stub = pb_grpc.InferenceServiceStub(channel)
            calls = [stub.Generate(request_number(i), timeout=DEADLINE) for i in range(NUM_REQUESTS)]
            answers = [answer_of(call) for call in calls]
        await_condition(cluster.is_idle, "every block free")
        return answers
    finally:
        cluster.stop()


class ExpertGroupTest(unittest.TestCase):
    def test_no_group_changes_a_token(self):
        alone = answers_of("--num_draft_tokens=0")
        self.assertEqual([len(answer) for answer in alone],
                         [3 if i % 10 == 0 else 1 for i in range(NUM_REQUESTS)])
        for flags in (("--num_draft_tokens=0", "--prefill_ep=2", "--decode_ep=64"),
                      ("--num_draft_tokens=2", "--prefill_ep=2", "--decode_ep=4"),
                      ("--num_redundant_experts=8,--pipeline_depth=3", "--unified", "--unified_ep=8")):
            self.assertEqual(answers_of(*flags), alone, flags)


if __name__ == "__main__":
    unittest.main()
