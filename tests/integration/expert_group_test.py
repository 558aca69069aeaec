#!/usr/bin/env python3
"""A request's tokens and log-probabilities are the same from one rank and from an
expert-parallel group of any size, with copies of experts and without, with drafts and
without, through a router that spreads requests over ranks."""

import os
import time
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
        return answers, cluster.worker_metric("baton_expert_moves_total", 'outcome="moved"')
    finally:
        cluster.stop()


REBALANCING = "--eplb_interval=24,--eplb_window=16,--eplb_max_layers_in_flight=2"


class ExpertGroupTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.alone, _ = answers_of("--num_draft_tokens=0")

    def check(self, worker_flags, *flags):
        start = time.monotonic()
        answers, moved_layers = answers_of(worker_flags, *flags)
        self.assertEqual(answers, self.alone, (worker_flags, flags))
        self.assertEqual(moved_layers > 0, "eplb" in worker_flags)
        print("%s %s: equal, %d layers moved, %.1f s" % (" ".join(flags), worker_flags, moved_layers,
                                                       time.monotonic() - start))

    def test_each_answer_has_its_samples(self):
        self.assertEqual([len(answer) for answer in self.alone],
                         [3 if i % 10 == 0 else 1 for i in range(NUM_REQUESTS)])

    def test_64_ranks_in_a_process(self):
        self.check("--num_draft_tokens=0", "--prefill_ep=2", "--decode_ep=64")

    def test_64_ranks_in_4_processes_over_shared_memory(self):
        self.check("--transport=shm", "--prefill_ep=2", "--decode_ep=64", "--decode_processes=4")

    def test_64_ranks_in_4_processes_over_ucx_with_redundant_experts(self):
        self.check("--transport=ucx,--num_redundant_experts=64", "--prefill_ep=2", "--decode_ep=64",
                   "--decode_processes=4")

    def test_64_ranks_in_4_processes_while_experts_move(self):
        self.check("--num_redundant_experts=64," + REBALANCING, "--prefill_ep=2", "--prefill_processes=2",
                   "--decode_ep=64", "--decode_processes=4")

    def test_drafts(self):
        self.check("--num_draft_tokens=2", "--prefill_ep=2", "--decode_ep=4", "--decode_processes=2")

    def test_three_steps_in_flight(self):
        self.check("--num_redundant_experts=8,--pipeline_depth=3," + REBALANCING, "--unified", "--unified_ep=8")

    @unittest.skipUnless("ALL_GROUPS" in os.environ, "minutes; GROUPS.md has the table")
    def test_every_size_and_way(self):
        for prefill_ep, ep_size, redundant in ((2, 2, 32), (2, 4, 32), (2, 8, 32), (2, 64, 64), (4, 128, 192)):
            for processes, transport in ((1, "auto"), (min(4, ep_size), "shm"), (min(4, ep_size), "tcp")):
                for flags in ("", "--num_redundant_experts=%d," % redundant):
                    for balancing in ("", "," + REBALANCING):
                        self.check(flags + "--transport=" + transport + balancing, "--prefill_ep=%d" % prefill_ep,
                                   "--decode_ep=%d" % ep_size, "--decode_processes=%d" % processes)


if __name__ == "__main__":
    unittest.main()
