#!/usr/bin/env python3
"""A worker is killed with streams of all kinds in flight: each goes on with the tokens, log-probabilities
and text of the undisturbed run, none doubled or missing."""

import os
import signal
import struct
import threading
import unittest

from cluster import DEADLINE, await_condition, golden, greedy, ids_prompt, pb, pb_grpc
from group_processes import Server, kill_all

import grpc

NUM_STREAMS = int(os.environ.get("NUM_STREAMS", "64"))
MAX_TOKENS = 19200 // NUM_STREAMS
TIMEOUT = DEADLINE * max(1, NUM_STREAMS // 16)  # Of a stream.
FLAGS = ("--kv_cache_bytes=64MiB", "--max_running_requests=%d" % (3 * NUM_STREAMS))


def sampled(request, seed, **more):
    request.sampling.CopyFrom(pb.SamplingParams(temperature=0.9, top_p=0.95, seed=seed, **more))


# What a stream asks for besides its tokens, each in its turn.
def plain(request, i):
    request.sampling.seed = i  # Which its answer tells.


def seeded(request, i):
    sampled(request, i)


def penalized(request, i):
    sampled(request, i, repetition_penalty=1.2, presence_penalty=0.4, frequency_penalty=0.3)


def three_samples(request, i):
    sampled(request, i, n=3)


def alternatives(request, i):
    sampled(request, i, repetition_penalty=1.1)
    request.logprobs.top = 4
    request.logprobs.after_truncation = i % 2 == 1


def prompt_logprobs(request, i):
    request.sampling.seed = i
    request.logprobs.prompt_from = 0
    request.logprobs.top = 2


def truncated(request, i):
    sampled(request, i, top_k=40, min_p=0.02)
    request.sampling.logit_bias.add(token_id=300, bias=3)
    request.stopping.min_tokens = 50
    request.output.stream_interval = 3


def stopped(request, i):
    sampled(request, i, frequency_penalty=0.5)  # And the stop string of with_stop_strings().


KINDS = (plain, seeded, penalized, three_samples, alternatives, prompt_logprobs, truncated, stopped)


def request_number(i, prompt_tokens=None):
    ids = golden("stories_1500")["ids"]
    request = greedy(ids_prompt(ids[9 * i:9 * i + (prompt_tokens or 5 + 11 * i % 150)]), MAX_TOKENS)
    KINDS[i % len(KINDS)](request, i)
    return request


class Stream(threading.Thread):
    """One Generate call, read to its end; `answer` is all that it said."""

    def __init__(self, router, request):
        super().__init__(daemon=True)
        self.error = None
        self._num_samples = request.sampling.n or 1
        self._samples = [{"ids": [], "logprobs": [], "top": [], "text": "", "end": None}
                         for _ in range(self._num_samples)]
        self._prompt = []
        self._channel = grpc.insecure_channel(router)
        self._call = pb_grpc.InferenceServiceStub(self._channel).Generate(request, timeout=TIMEOUT)
        self.start()

    def run(self):
        try:
            for response in self._call:
                self._take(response)
        except grpc.RpcError as error:
            self.error = error
        except AssertionError as error:
            self.error = error
        self._channel.close()

    def _take(self, response):
        if response.WhichOneof("event") == "prompt_logprobs":
            assert response.prompt_logprobs.first_token_index == 1 + len(self._prompt)
            self._prompt += self._scores(response.prompt_logprobs)
            return
        is_end = response.WhichOneof("event") == "finished"
        message = response.finished if is_end else response.chunk
        sample = self._samples[message.sample_index]
        assert sample["end"] is None, "a message after the last"
        if is_end:
            sample["end"] = (message.finish_reason, message.stop_string, message.stop_token_id, message.seed,
                             message.fingerprint, message.usage.completion_tokens, message.usage.prompt_tokens)
            return
        assert message.first_token_index == len(sample["ids"]), "a token doubled or missing"
        sample["ids"] += message.token_ids
        sample["top"] += self._scores(message)
        sample["text"] += message.text

    @staticmethod
    def _scores(message):
        bits = [struct.pack("f", value) for value in message.logprobs]
        top = [(tuple(t.token_ids), tuple(struct.pack("f", value) for value in t.logprobs))
               for t in message.top_logprobs]
        return list(zip(message.token_ids, bits, top or [None] * len(bits)))

    def fewest_tokens(self):
        return min(len(sample["ids"]) for sample in self._samples)

    def texts(self):
        return [sample["text"] for sample in self._samples]

    def answer(self):
        self.join(TIMEOUT)
        assert not self.is_alive(), "a stream hangs"
        if self.error is not None:
            raise self.error
        assert all(sample["end"] for sample in self._samples)
        return self._samples, self._prompt


class Pools:
    """Two prefill and two decode servers, and a router before them."""

    def __init__(self, *flags):
        self.prefill, self.decode = (
            [Server("batond", "%s%d.log" % (role, i), "--role=" + role, *FLAGS, *flags) for i in range(2)]
            for role in ("prefill", "decode"))
        self.workers = self.prefill + self.decode
        # Long enough for a worker to come back on any machine.
        self.router = Server("baton-router", "router.log", "--worker_wait=60s",
                             *("--%s=%s" % (role, ",".join(worker.grpc for worker in pool))
                               for role, pool in (("prefill", self.prefill), ("decode", self.decode))))
        for server in [*self.workers, self.router]:
            server.start()
        for worker in self.workers:
            self.await_ready(worker, 1)
        await_condition(self.router.is_ready, "the router")

    def await_ready(self, worker, times):
        """The router has seen it come `times` times."""
        def is_seen():
            assert worker.process.poll() is None, worker.log()
            return self.router.log().count("worker %s ready" % worker.grpc) >= times
        await_condition(is_seen, worker.grpc)

    def is_idle(self):
        return all(worker.metric(name) == 0 for worker in self.workers for name in
                   ("baton_kv_utilization_ratio", "baton_running_requests", "baton_waiting_requests"))

    def streams(self, requests):
        return [Stream(self.router.grpc, request) for request in requests]

    def restart(self, worker, **environment):
        times = self.router.log().count("worker %s ready" % worker.grpc)
        worker.start(**environment)
        self.await_ready(worker, times + 1)

    def end(self):
        kill_all([self.router, *self.workers])


def with_stop_strings(requests, answers):
    """Where `stopped` asks for it: text late in the undisturbed answer, that is not in it before."""
    for i, (request, (samples, _)) in enumerate(zip(requests, answers)):
        if KINDS[i % len(KINDS)] is not stopped:
            continue
        text = samples[0]["text"]
        late = [text[at:at + 24] for at in range(len(text) * 3 // 4, len(text) - 24)]
        request.stopping.stop_strings.append(next(part for part in late if text.find(part) >= len(text) * 3 // 4))
    return requests


def kill(worker):
    worker.kill()
    assert worker.end() == -signal.SIGKILL


def drain(worker):
    worker.kill(signal.SIGTERM)
    worker.kill(signal.SIGCONT)
    assert worker.end() == 0


class FailoverTest(unittest.TestCase):
    def start(self, *flags):
        self.pools = Pools(*flags)
        self.addCleanup(self.pools.end)

    def undisturbed(self, requests):
        return [stream.answer() for stream in self.pools.streams(requests)]

    def expect_same(self, streams, expected):
        for i, (stream, answer) in enumerate(zip(streams, expected)):
            self.assertEqual(stream.answer(), answer, (i, KINDS[i % len(KINDS)].__name__))
        await_condition(self.pools.is_idle, "every block free")

    def lose_decode_servers(self, lose, *flags):
        """First some streams lose theirs, and then, with that one back, all of them."""
        self.start(*flags)
        requests = [request_number(i) for i in range(NUM_STREAMS)]
        requests = with_stop_strings(requests, self.undisturbed(requests))
        expected = self.undisturbed(requests)
        for samples, _ in expected:
            self.assertGreater(min(len(sample["ids"]) for sample in samples), MAX_TOKENS // 3)
        first, second = self.pools.decode
        for server in (first, second):
            server.kill(signal.SIGSTOP)
        streams = self.pools.streams(requests)
        self.crawl(streams, first, second)
        lose(first)
        await_condition(lambda: self.resumes() > 0, "resumes")
        self.crawl(streams, second)
        self.assertTrue(all(stream.is_alive() for stream in streams))
        before = self.resumes()
        self.pools.restart(first)
        lose(second)
        await_condition(lambda: self.resumes() >= before + NUM_STREAMS, "resumes")
        self.pools.restart(second)
        self.expect_same(streams, expected)
        print("flags %s: %d resumes, %d tokens computed again" %
              (flags, self.resumes(), self.pools.router.metric("baton_router_recomputed_tokens_total")))

    @staticmethod
    def crawl(streams, *servers):
        """Until each stream has 8 tokens more, by moments between which the servers are stopped, as they are
        at the end: however fast they are beside their clients, no stream comes to its end."""
        seen = [stream.fewest_tokens() for stream in streams]

        def moment():
            for server in servers:
                server.kill(signal.SIGCONT)
            signal.sigtimedwait([signal.SIGUSR1], 0.004)
            for server in servers:
                server.kill(signal.SIGSTOP)
            return all(stream.fewest_tokens() > had + 8 for stream, had in zip(streams, seen))
        await_condition(moment, "tokens of every stream")

    def retries(self):
        return self.pools.router.metric("baton_router_retries_total")

    def resumes(self):
        return self.pools.router.metric("baton_router_resumes_total")

    def test_decode_servers_are_killed(self):
        self.lose_decode_servers(kill, "--num_draft_tokens=0")

    def test_decode_servers_are_killed_while_they_draft(self):
        self.lose_decode_servers(kill, "--num_draft_tokens=3", "--adaptive_verification=false")

    def test_decode_servers_drain_and_cut_what_is_left(self):
        self.lose_decode_servers(drain, "--num_draft_tokens=1", "--drain_grace=0s")

    def test_a_prefill_server_is_killed(self):
        """At any time between a stream's place in its queue and the pull of its KV."""
        self.start("--num_draft_tokens=0", "--max_batched_tokens=64", "--max_chunk_tokens=64")
        requests = [request_number(i, prompt_tokens=500) for i in range(NUM_STREAMS)]
        for request in requests:
            request.stopping.max_tokens = 60
        expected = self.undisturbed(requests)
        for victim in self.pools.prefill:
            streams = self.pools.streams(requests)
            await_condition(lambda: any(stream.fewest_tokens() > 0 for stream in streams), "a token")
            self.assertGreater(victim.metric("baton_running_requests"), 0)
            before = self.retries()
            kill(victim)
            await_condition(lambda: self.retries() > before, "retries")
            self.pools.restart(victim)
            self.expect_same(streams, expected)
        print("retries: %d, of them resumes: %d" % (self.retries(), self.resumes()))


if __name__ == "__main__":
    unittest.main()
