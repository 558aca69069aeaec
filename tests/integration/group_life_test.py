#!/usr/bin/env python3
"""The processes of an expert-parallel group come together, refuse who doesn't fit, and leave together."""

import signal
import unittest

from cluster import DEADLINE, await_condition, golden, greedy, ids_prompt, pb_grpc
from group_processes import Server, free_address, kill_all

import grpc

FLAGS = ("--kv_cache_bytes=16MiB", "--max_running_requests=4")


class GroupLifeTest(unittest.TestCase):
    def setUp(self):
        self.leader = free_address()
        self.servers = []
        self.addCleanup(kill_all, self.servers)

    def start(self, binary, *flags, **environment):
        server = Server(binary, "server%d.log" % len(self.servers), *flags)
        server.start(**environment)
        self.servers.append(server)
        return server

    def start_member(self, offset, *flags):
        return self.start("batond", "--ep_size=4", "--local_ranks=2", "--rank_offset=%d" % offset,
                          "--leader=" + self.leader, *FLAGS, *flags)

    def await_ready(self, *servers):
        await_condition(lambda: all(server.is_ready() for server in servers), "the servers")

    def test_a_leader_worker_set_says_who_is_who(self):
        host, port = self.leader.split(":")
        pods = [self.start("batond", "--ep_size=8", "--leader=:" + port, *FLAGS, LWS_LEADER_ADDRESS=host,
                           LWS_GROUP_SIZE="2", LWS_WORKER_INDEX=str(i)) for i in range(2)]
        self.await_ready(*pods)
        for pod in pods:
            self.assertEqual(pod.metric("baton_group_ranks"), 8)
            self.assertEqual(pod.metric("baton_group_local_ranks"), 4)

    def test_the_leader_refuses_who_differs_and_names_the_flag(self):
        leader = self.start_member(0)
        stranger = self.start_member(2, "--any_interval=50")
        self.assertEqual(stranger.end(), 1)
        self.assertRegex(stranger.log(), "any_interval.*50.*100|any_interval.*100.*50")
        self.assertFalse(leader.is_ready())
        self.await_ready(leader, self.start_member(2))

    def test_sigterm_while_the_group_waits_is_a_good_end(self):
        leader = self.start_member(0)
        await_condition(lambda: "group waits for ranks 2..3" in leader.log(), "the wait")
        leader.kill(signal.SIGTERM)
        self.assertEqual(leader.end(), 0)

    def test_who_is_told_to_leave_steps_on_for_the_others(self):
        first, second = self.start_member(0), self.start_member(2)
        self.await_ready(first, second)
        router = self.start("baton-router", "--unified=" + second.grpc)
        self.await_ready(router)
        request = greedy(ids_prompt(golden("stories_1500")["ids"][:20]), 1000)
        tokens = []
        with grpc.insecure_channel(router.grpc) as channel:
            for response in pb_grpc.InferenceServiceStub(channel).Generate(request, timeout=DEADLINE):
                if response.WhichOneof("event") == "chunk":
                    if not tokens:
                        first.kill(signal.SIGTERM)
                    tokens.extend(response.chunk.token_ids)
        self.assertEqual(len(tokens), 1000)
        self.assertIsNone(first.process.poll())
        second.kill(signal.SIGTERM)
        self.assertEqual([first.end(), second.end()], [0, 0])


    def test_its_grace_and_a_second_signal_end_that(self):
        for grace, num_signals in (("1s", 1), ("1h", 2)):
            leader, member = self.start_member(0), self.start_member(2, "--drain_grace=" + grace)
            self.await_ready(leader, member)
            for _ in range(num_signals):
                member.kill(signal.SIGTERM)
                await_condition(lambda: "drain role" in member.log(), "the drain")
            self.assertEqual(member.end(), 0)
            await_condition(lambda: leader.ended(1) == {2, 3}, "the end of the epoch")
            leader.kill(signal.SIGTERM)
            self.assertEqual(leader.end(), 0)

    def test_who_leaves_can_still_be_watched(self):
        leader, member = self.start_member(0), self.start_member(2)
        self.await_ready(leader, member)
        member.kill(signal.SIGTERM)
        await_condition(lambda: not member.is_ready(), "the drain")
        self.assertEqual(member.metric("baton_group_formed"), 1)
        leader.kill(signal.SIGTERM)
        self.assertEqual([leader.end(), member.end()], [0, 0])


if __name__ == "__main__":
    unittest.main()
