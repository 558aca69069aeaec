#!/usr/bin/env python3
"""A process of an expert-parallel group is killed, or stopped: its peers name it, nobody hangs, and the
group forms again. NUM_KILLS=100 kills so many times, and prints a table of the times."""

import os
import random
import signal
import statistics
import threading
import unittest

from cluster import DEADLINE, await_condition, golden, greedy, ids_prompt, pb_grpc
from group_processes import Group

import grpc

NUM_KILLS = int(os.environ.get("NUM_KILLS", "4"))
NUM_PROMPTS = 8
FLAGS = ("--kv_cache_bytes=16MiB", "--max_batched_tokens=128", "--max_chunk_tokens=128",
         "--max_running_requests=16")


def request_number(i):
    ids = golden("stories_1500")["ids"]
    return greedy(ids_prompt(ids[7 * i:7 * i + 20 + 3 * i]), 60)


class Load:
    """Streams without pause; remembers what each one got."""

    def __init__(self, router, expected):
        self._expected = expected
        self._stop = threading.Event()
        self.num_tokens = 0
        self.codes = {}
        self.wrong = []
        self.cut = []  # That had begun.
        channel = grpc.insecure_channel(router)
        self._stub = pb_grpc.InferenceServiceStub(channel)
        self._threads = [threading.Thread(target=self._run, args=(i,), daemon=True) for i in range(NUM_PROMPTS)]
        for thread in self._threads:
            thread.start()

    def _run(self, i):
        while not self._stop.is_set():
            tokens, code = [], grpc.StatusCode.OK
            try:
                for response in self._stub.Generate(request_number(i), timeout=DEADLINE):
                    if response.WhichOneof("event") == "chunk":
                        tokens.extend(response.chunk.token_ids)
                        self.num_tokens += len(response.chunk.token_ids)
            except grpc.RpcError as error:
                code = error.code()
            self.codes[code] = self.codes.get(code, 0) + 1
            complete = code == grpc.StatusCode.OK
            if tokens != self._expected[i][:len(self._expected[i]) if complete else len(tokens)]:
                self.wrong.append((i, code, tokens))
            if not complete:
                self.cut += [(i, code)] if tokens else []
                self._stop.wait(0.01)

    def await_tokens(self):
        seen = self.num_tokens
        return await_condition(lambda: self.num_tokens > seen, "tokens")

    def is_silent(self):
        seen = self.num_tokens
        signal.sigtimedwait([signal.SIGUSR1], 0.1)
        return self.num_tokens == seen

    def end(self):
        self._stop.set()
        for thread in self._threads:
            thread.join(DEADLINE)
            assert not thread.is_alive(), "a stream hangs"


def answers_of(router):
    with grpc.insecure_channel(router) as channel:
        stub = pb_grpc.InferenceServiceStub(channel)
        calls = [stub.Generate(request_number(i), timeout=DEADLINE) for i in range(NUM_PROMPTS)]
        return [[token for response in call if response.WhichOneof("event") == "chunk"
                 for token in response.chunk.token_ids] for call in calls]


class GroupFaultsTest(unittest.TestCase):
    def start_group(self, num_processes, ep_size, *flags):
        group = Group(num_processes, ep_size, *FLAGS, *flags)
        self.addCleanup(group.kill)
        return group

    def kill_and_restart(self, group, load, victim):
        """Seconds until all peers have named it, and from its start until all serve again."""
        epoch = group.newest_epoch()
        peers = [worker for worker in group.workers if worker is not victim]
        lost = group.ranks_of(victim)
        load.await_tokens()
        victim.kill()
        named = await_condition(lambda: all(peer.ended(epoch) == lost for peer in peers), "the peers")
        self.assertEqual(victim.end(), -signal.SIGKILL)
        victim.start()
        formed = group.await_ready()
        load.await_tokens()
        return named, formed

    def kill_at_random(self, transport):
        seed = random.randrange(2**32)
        print("transport", transport, "seed", seed)
        rng = random.Random(seed)
        group = self.start_group(4, 8, "--transport=" + transport)
        expected = answers_of(group.router.grpc)
        load = Load(group.router.grpc, expected)
        times = [self.kill_and_restart(group, load, rng.choice(group.workers)) for _ in range(NUM_KILLS)]
        load.end()
        self.assertEqual((load.wrong, load.cut), ([], []))
        self.assertLessEqual(set(load.codes), {grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE})
        self.assertEqual(answers_of(group.router.grpc), expected)
        group.stop()
        print("streams", {code.name: count for code, count in load.codes.items()})
        for what, seconds in zip(("named by all peers after", "serves again, from the process's start, after"),
                                 zip(*times)):
            print("%s: median %.3f s, most %.3f s" % (what, statistics.median(seconds), max(seconds)))

    def test_peers_name_a_killed_process_and_the_group_forms_again(self):
        self.kill_at_random("shm")

    def test_so_it_does_over_ucx(self):
        self.kill_at_random("tcp")

    def test_a_stop_shorter_than_the_watchdog_is_tolerated(self):
        group = self.start_group(2, 4, "--watchdog=60s")
        expected = answers_of(group.router.grpc)
        load = Load(group.router.grpc, expected)
        for worker in group.workers:
            load.await_tokens()
            worker.kill(signal.SIGSTOP)
            await_condition(load.is_silent, "silence")
            worker.kill(signal.SIGCONT)
            load.await_tokens()
        load.end()
        self.assertEqual((load.wrong, load.cut), ([], []))
        self.assertEqual(set(load.codes), {grpc.StatusCode.OK})
        self.assertEqual(group.newest_epoch(), 1)
        group.stop()

    def test_the_watchdog_names_a_stopped_process_and_fences_it(self):
        group = self.start_group(2, 4, "--watchdog=1s")
        expected = answers_of(group.router.grpc)
        load = Load(group.router.grpc, expected)
        for victim in group.workers:
            peer = next(worker for worker in group.workers if worker is not victim)
            epoch = group.newest_epoch()
            load.await_tokens()
            victim.kill(signal.SIGSTOP)
            await_condition(lambda: peer.ended(epoch), "the watchdog")
            # Some of its ranks may have done their part of the step.
            self.assertLessEqual(peer.ended(epoch), group.ranks_of(victim))
            self.assertIn("the newest steps of epoch %d" % epoch, peer.log())
            victim.kill(signal.SIGCONT)
            await_condition(lambda: group.newest_epoch() > epoch, "the next epoch")
            group.await_ready()
            load.await_tokens()
        load.end()
        self.assertEqual((load.wrong, load.cut), ([], []))
        self.assertEqual(answers_of(group.router.grpc), expected)
        group.stop()

    def test_requests_that_keep_coming_do_not_put_the_watchdog_off(self):
        group = self.start_group(2, 4, "--watchdog=1s")
        victim, peer = group.workers
        victim.kill(signal.SIGSTOP)
        with grpc.insecure_channel(group.router.grpc) as channel:
            stub = pb_grpc.InferenceServiceStub(channel)
            calls = []

            def is_named():
                calls.append(stub.Generate(request_number(0), timeout=0.5))
                return peer.ended(1) == group.ranks_of(victim)

            await_condition(is_named, "the watchdog")
            for call in calls:
                call.cancel()
        victim.kill(signal.SIGCONT)
        await_condition(lambda: group.newest_epoch() > 1, "the next epoch")
        group.await_ready()
        group.stop()


if __name__ == "__main__":
    unittest.main()
