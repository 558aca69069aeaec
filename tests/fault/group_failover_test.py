#!/usr/bin/env python3
"""A process of a decode group of 64 ranks is killed under 64 streams of all kinds: each goes on, when the
group has formed again, with the tokens, log-probabilities and text of the undisturbed run."""

import os
import signal
import sys
import unittest

sys.path.insert(0, "tests/integration")

from cluster import await_condition  # noqa: E402
from failover_test import Stream, request_number, with_stop_strings  # noqa: E402
from group_processes import Server, free_address, kill_all  # noqa: E402

EP_SIZE = 64
NUM_PROCESSES = 4
NUM_STREAMS = int(os.environ.get("NUM_STREAMS", "64"))
MAX_TOKENS = 150
FLAGS = ("--num_draft_tokens=0", "--max_batched_tokens=128", "--max_chunk_tokens=128")


class SplitGroup:
    """A prefill server, the processes of one decode group, and a router before them."""

    def __init__(self):
        leader = free_address()
        local_ranks = EP_SIZE // NUM_PROCESSES
        self.prefill = Server("batond", "prefill.log", "--role=prefill", "--kv_cache_bytes=64MiB",
                              "--max_running_requests=256", *FLAGS)
        self.decode = [
            Server("batond", "decode%d.log" % i, "--role=decode", "--ep_size=%d" % EP_SIZE,
                   "--local_ranks=%d" % local_ranks, "--rank_offset=%d" % (i * local_ranks), "--leader=" + leader,
                   "--kv_cache_bytes=64MiB", "--max_running_requests=16", *FLAGS)
            for i in range(NUM_PROCESSES)]
        # A stream that has begun outlives the group's end, however slow the machine.
        self.router = Server("baton-router", "router.log", "--worker_wait=60s", "--prefill=" + self.prefill.grpc,
                             "--decode=" + ",".join(worker.grpc for worker in self.decode))
        for server in self.servers():
            server.start()
        for server in self.servers():
            await_condition(server.is_ready, "the servers")

    def servers(self):
        return [self.prefill, *self.decode, self.router]

    def is_idle(self):
        return all(worker.metric(name) == 0 for worker in [self.prefill, *self.decode] for name in
                   ("baton_kv_utilization_ratio", "baton_running_requests", "baton_waiting_requests"))

    def resumes(self):
        return self.router.metric("baton_router_resumes_total")


def short_request(i):
    request = request_number(i)
    request.stopping.max_tokens = MAX_TOKENS
    return request


class GroupFailoverTest(unittest.TestCase):
    def setUp(self):
        self.group = SplitGroup()
        self.addCleanup(lambda: kill_all(self.group.servers()))

    def streams(self, requests):
        return [Stream(self.group.router.grpc, request) for request in requests]

    def answers(self, requests):
        return [stream.answer() for stream in self.streams(requests)]

    def lose(self, victim, requests, expected):
        streams = self.streams(requests)
        before = self.group.resumes()
        await_condition(lambda: all(stream.fewest_tokens() > 0 for stream in streams), "tokens of every stream")
        alive = sum(stream.is_alive() for stream in streams)
        victim.kill()
        self.assertEqual(victim.end(), -signal.SIGKILL)
        victim.start()
        for i, (stream, answer) in enumerate(zip(streams, expected)):
            self.assertEqual(stream.answer(), answer, i)
        await_condition(self.group.is_idle, "every block free")
        resumes = self.group.resumes() - before
        self.assertGreater(alive, NUM_STREAMS // 2)
        self.assertGreater(resumes, 0)
        print("%d of %d streams under way, %d resumes" % (alive, NUM_STREAMS, resumes))

    def test_a_follower_and_the_leader_are_killed(self):
        requests = [short_request(i) for i in range(NUM_STREAMS)]
        requests = with_stop_strings(requests, self.answers(requests))
        expected = self.answers(requests)
        self.lose(self.group.decode[2], requests, expected)
        self.lose(self.group.decode[0], requests, expected)


if __name__ == "__main__":
    unittest.main()
