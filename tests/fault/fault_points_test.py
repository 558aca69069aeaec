#!/usr/bin/env python3
"""A process fails at a chosen place, and every stream goes on with its tokens, log-probabilities and text.
For builds that have the places (base/fault_point.h); README.md lists them."""

import os
import re
import signal
import subprocess
import sys
import unittest

sys.path.insert(0, "tests/integration")

from cluster import await_condition  # noqa: E402
from failover_test import Pools, request_number  # noqa: E402
from group_faults_test import FLAGS as GROUP_FLAGS, Load, answers_of  # noqa: E402
from group_processes import Group  # noqa: E402

HAS_POINTS = "--fault_points" in subprocess.run(["deploy/bin/batond", "--help"], capture_output=True, text=True,
                                               check=True).stdout
NUM_STREAMS = 6
NUM_WORKERS = 4
# A prompt is four chunks, a block each.
FLAGS = ("--num_draft_tokens=0", "--max_batched_tokens=64", "--max_chunk_tokens=64", "--kv_checksums")


def short_request(i):
    request = request_number(i, prompt_tokens=240)
    request.stopping.max_tokens = 20
    request.stopping.min_tokens = 0
    return request


class PoolsTest(unittest.TestCase):
    MORE_FLAGS = ()

    @classmethod
    def setUpClass(cls):
        cls.pools = Pools(*FLAGS, *cls.MORE_FLAGS)
        cls.requests = [short_request(i) for i in range(NUM_STREAMS)]
        cls.expected = [stream.answer() for stream in cls.pools.streams(cls.requests)]

    @classmethod
    def tearDownClass(cls):
        cls.pools.end()

    def setUp(self):
        for worker in self.pools.workers:
            if worker.process.poll() is not None:  # A test that failed left it so.
                worker.start()

    def arm(self, worker, rules):
        """Starts it anew, with these rules."""
        if worker.process.poll() is None:
            worker.kill(signal.SIGTERM)
            self.assertEqual(worker.end(), 0)
        worker.start(BATON_FAULT_POINTS=rules)
        await_condition(worker.is_ready, "the server")
        await_condition(lambda: self.num_ready() == NUM_WORKERS, "the router's seeing it")

    def num_ready(self):
        return self.pools.router.metric("baton_router_workers", 'state="ready"')

    def expect_all_right(self, streams):
        for i, (stream, answer) in enumerate(zip(streams, self.expected)):
            self.assertEqual(stream.answer(), answer, i)

    def retries(self):
        return self.pools.router.metric("baton_router_retries_total")

    def check_killed(self, victim, rules):
        self.arm(victim, rules)
        streams = self.pools.streams(self.requests)
        self.assertEqual(victim.end(), -signal.SIGKILL)
        self.assertIn("fault point " + rules.split(":")[0], victim.log())
        seconds = await_condition(lambda: self.num_ready() < NUM_WORKERS, "the router's seeing it")
        self.expect_all_right(streams)
        self.arm(victim, "")
        freed = await_condition(self.pools.is_idle, "every block free")
        print("%s: noticed after %.3f s, every block free %.3f s after all" % (rules, seconds, freed))

    def check_survived(self, victims, rules):
        """Nobody dies; the streams wait, or are tried again."""
        for victim in victims:
            self.arm(victim, rules)
        streams = self.pools.streams(self.requests)
        self.expect_all_right(streams)
        freed = await_condition(self.pools.is_idle, "every block free")
        fired = sum(victim.log().count("fault point ") for victim in victims)
        self.assertGreater(fired, 0, rules)
        print("%s: %d times, every block free %.3f s after all" % (rules, fired, freed))


@unittest.skipUnless(HAS_POINTS, "this build has no fault points")
class TransferFaultsTest(PoolsTest):
    def test_a_prefill_server_is_killed_before_its_first_block(self):
        self.check_killed(self.pools.prefill[0], "kv_export_opened:kill:2")

    def test_a_prefill_server_is_killed_between_blocks(self):
        self.check_killed(self.pools.prefill[0], "kv_export_blocks:kill:2")

    def test_a_prefill_server_is_killed_after_its_last_block(self):
        self.check_killed(self.pools.prefill[0], "kv_export_tail:kill:2")

    def test_a_prefill_server_is_killed_when_all_is_done(self):
        self.check_killed(self.pools.prefill[0], "kv_export_done:kill:2")

    def test_a_decode_server_is_killed_before_its_first_block(self):
        self.check_killed(self.pools.decode[0], "kv_import_open:kill:2")

    def test_a_decode_server_is_killed_between_blocks(self):
        self.check_killed(self.pools.decode[0], "kv_import_block:kill:5")

    def test_a_decode_server_is_killed_when_the_tail_comes(self):
        self.check_killed(self.pools.decode[0], "kv_import_tail:kill:2")

    def test_a_decode_server_is_killed_before_it_says_done(self):
        self.check_killed(self.pools.decode[0], "kv_import_done:kill:2")

    def test_a_decode_server_is_killed_between_drawing_and_writing(self):
        self.check_killed(self.pools.decode[0], "tokens_drawn:kill:20")

    def test_a_server_is_killed_as_its_drain_begins(self):
        victim = self.pools.decode[0]
        self.arm(victim, "drain:kill")
        streams = self.pools.streams(self.requests)
        await_condition(lambda: victim.metric("baton_running_requests") > 0, "work for it")
        victim.kill(signal.SIGTERM)
        self.assertEqual(victim.end(), -signal.SIGKILL)
        self.expect_all_right(streams)
        self.arm(victim, "")

    def test_the_word_that_all_has_come_is_lost(self):
        self.check_survived(self.pools.prefill, "kv_export_done:fail")

    def test_that_word_comes_twice(self):
        def ignored():
            return sum(worker.metric("baton_kv_transfer_dropped_messages_total", 'reason="ignored"')
                       for worker in self.pools.prefill)
        before = ignored()
        self.check_survived(self.pools.decode, "kv_import_done_twice:fail")
        await_condition(lambda: ignored() > before, "the second, ignored")

    def test_a_tail_is_lost_once(self):
        self.check_survived([self.pools.decode[0]], "kv_import_tail:fail:2")

    def test_blocks_are_late(self):
        self.check_survived([self.pools.prefill[0]], "kv_export_blocks:delay100")

    def test_a_damaged_block_costs_its_request_alone_another_try(self):
        for rules in ("kv_import_block:fail:3", "kv_import_cut:fail:3"):
            before = self.retries()
            self.check_survived([self.pools.decode[0]], rules)
            self.assertEqual(self.pools.decode[0].metric("baton_kv_damaged_blocks_total"), 1)
            self.assertEqual(self.retries(), before + 1)


@unittest.skipUnless(HAS_POINTS, "this build has no fault points")
class LeaseTest(PoolsTest):
    MORE_FLAGS = ("--kv_lease=5s",)

    def test_a_lease_ends_before_its_importer_comes(self):
        before = self.retries()
        self.check_survived([self.pools.decode[0]], "kv_import_open:delay12000:2")
        self.assertGreater(self.retries(), before)


@unittest.skipUnless(HAS_POINTS, "this build has no fault points")
class VoteFaultsTest(unittest.TestCase):
    NUM_PROCESSES = 4

    def check(self, rules, ended_by, *flags):
        """The last process fails in a step's vote: `ended_by` says how, and its peers name it."""
        group = Group(self.NUM_PROCESSES, 2 * self.NUM_PROCESSES, *GROUP_FLAGS, *flags)
        self.addCleanup(group.kill)
        expected = answers_of(group.router.grpc)
        victim, peers = group.workers[-1], group.workers[:-1]
        victim.kill()
        victim.end()
        victim.start(BATON_FAULT_POINTS=rules)
        group.await_ready()
        epoch = group.newest_epoch()
        load = Load(group.router.grpc, expected)
        named = await_condition(lambda: all(peer.ended(epoch) for peer in peers), "the peers")
        for peer in peers:
            # Of one that stops some ranks may have done their part of the step.
            self.assertLessEqual(peer.ended(epoch), group.ranks_of(victim))
        ended_by(victim)
        formed = group.await_ready()
        load.await_tokens()
        load.end()
        self.assertEqual((load.wrong, load.cut), ([], []))
        self.assertEqual(answers_of(group.router.grpc), expected)
        group.stop()
        print("%s: named after %.3f s, formed again after %.3f s" % (rules, named, formed))

    def restart_killed(self, victim):
        self.assertEqual(victim.end(), -signal.SIGKILL)
        self.assertRegex(victim.log(), "fault point vote_")
        victim.start()

    def test_a_process_is_killed_before_its_ballot_goes(self):
        self.check("vote_post:kill:100", self.restart_killed)

    def test_a_process_is_killed_when_one_of_three_peers_has_its_ballot(self):
        self.check("vote_sent:kill:301", self.restart_killed)

    def test_a_process_is_killed_when_all_have_its_ballot(self):
        self.check("vote_sent:kill:303", self.restart_killed)

    def test_a_process_stops_with_its_ballot_in_hand(self):
        def wake(victim):
            self.assertEqual(os.waitpid(victim.process.pid, os.WNOHANG), (0, 0))
            self.assertTrue(re.search("fault point vote_post", victim.log()))
            victim.kill(signal.SIGCONT)
        self.check("vote_post:stop:100", wake, "--watchdog=2s")


if __name__ == "__main__":
    unittest.main()
