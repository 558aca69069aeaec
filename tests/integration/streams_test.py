#!/usr/bin/env python3
"""Many streams at once through a prefill and a decode server: all tokens right, and
cancelled ones leave nothing behind, whatever they were doing."""

import random
import struct
import threading
import unittest

import grpc

from cluster import DEADLINE, Cluster, await_condition, golden, greedy, ids_prompt, pb, pb_grpc

NUM_STREAMS = 200
PHASES = ("queued", "prefill", "transfer", "decode")


class Stream(threading.Thread):
    """One Generate call, read to its end."""

    def __init__(self, stub, request):
        super().__init__()
        self.ids, self.logprobs, self.finished, self.error = [], [], None, None
        self._decodes = threading.Event()
        self._call = stub.Generate(request, timeout=DEADLINE)

    def run(self):
        try:
            for response in self._call:
                assert self.finished is None, "a message after the last"
                if response.WhichOneof("event") == "finished":
                    self.finished = response.finished
                    continue
                assert response.chunk.first_token_index == len(self.ids)
                self.ids += response.chunk.token_ids
                self.logprobs += [struct.pack("f", value) for value in response.chunk.logprobs]
                if len(self.ids) > 1:  # The first one is the prefill server's.
                    self._decodes.set()
        except grpc.RpcError as error:
            self.error = error.code()
        self._decodes.set()

    def cancel(self):
        self._call.cancel()

    def await_decoding(self):
        assert self._decodes.wait(DEADLINE)

    def tokens(self):
        return self.ids, self.logprobs


def request_number(i, prompt_tokens=None, max_tokens=24):
    """Twenty different requests, half of them sampled."""
    ids = golden("stories_1500")["ids"]
    start = 17 * (i % 20)
    request = greedy(ids_prompt(ids[start:start + (prompt_tokens or 5 + 7 * (i % 20))]), max_tokens)
    if i % 2:
        request.sampling.CopyFrom(pb.SamplingParams(temperature=0.8, top_p=0.9, seed=i % 20))
    return request


class StreamsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        # Fewer slots than streams: some wait.
        cls.cluster = Cluster("--worker_flags=--kv_cache_bytes=96MiB,--max_running_requests=24")
        cls.channel = grpc.insecure_channel(cls.cluster.router)
        cls.stub = pb_grpc.InferenceServiceStub(cls.channel)
        cls.alone = []
        for i in range(20):
            stream = Stream(cls.stub, request_number(i))
            stream.run()
            assert stream.finished, stream.error
            cls.alone.append(stream.tokens())

    @classmethod
    def tearDownClass(cls):
        cls.channel.close()
        cls.cluster.stop()

    def start(self, *args, **kwargs):
        stream = Stream(self.stub, request_number(*args, **kwargs))
        stream.start()
        return stream

    def expect_whole(self, stream, i):
        stream.join()
        self.assertIsNone(stream.error)
        self.assertEqual(stream.tokens(), self.alone[i % 20])
        self.assertEqual(stream.finished.usage.completion_tokens, len(stream.ids))

    def test_two_hundred_streams_give_the_tokens_of_each_alone(self):
        streams = [self.start(i) for i in range(NUM_STREAMS)]
        for i, stream in enumerate(streams):
            self.expect_whole(stream, i)
        self.assertTrue(await_condition(self.cluster.is_idle, "idle workers") < DEADLINE)

    def test_cancelled_streams_leave_every_block_free(self):
        before = {phase: self.aborted(phase) for phase in PHASES}
        chance = random.Random(20261129)
        last = range(70, NUM_STREAMS - 30)
        queued = chance.sample(last, 40)
        generating = chance.sample([i for i in range(NUM_STREAMS - 30) if i not in queued], 30)
        # Long prompts come first, so that they hold the slots for a while.
        long_ones = [self.start(i, prompt_tokens=1100) for i in range(30)]
        short_ones = [self.start(i, max_tokens=1000 if i in generating else 24) for i in range(NUM_STREAMS - 30)]
        # Nothing has come from the last of them: they wait for a slot.
        for i in queued:
            short_ones[i].cancel()
        # A prompt that is being computed is being pulled at the same time.
        for stream in long_ones:
            await_condition(lambda: stream.ids or self.cluster.worker_metric("baton_kv_blocks", 'state="importing"') > 0,
                            "a transfer")
            stream.cancel()
        for i in generating:
            short_ones[i].await_decoding()
            short_ones[i].cancel()
        for i, stream in enumerate(short_ones):
            if i not in queued and i not in generating:
                self.expect_whole(stream, i)
        for stream in long_ones + short_ones:
            stream.join()
        seconds = await_condition(self.cluster.is_idle, "free blocks")
        counts = {phase: self.aborted(phase) - before[phase] for phase in PHASES}
        print("cancelled while %s; every block free %.3f s after the last stream" % (counts, seconds))
        for phase in PHASES:
            self.assertGreaterEqual(counts[phase], 10, phase)

    def aborted(self, phase):
        return self.cluster.worker_metric("baton_aborted_requests_total", 'phase="%s"' % phase)


if __name__ == "__main__":
    unittest.main()
