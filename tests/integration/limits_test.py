#!/usr/bin/env python3
"""Calls that ask for too much, in size or in number: each is refused, quickly, and takes no memory."""

import time
import unittest

import grpc

from cluster import DEADLINE, Cluster, greedy, ids_prompt, pb, pb_grpc, resident

MESSAGE_LIMIT = 16 << 20
GENERATE = "/baton.v1.InferenceService/Generate"


def message(size):
    """A GenerateRequest of exactly so many bytes, most of them text."""
    text = "a" * (size - 64)
    while True:
        request = pb.GenerateRequest(prompt=pb.Prompt(text=pb.TextPrompt(text=text)))
        excess = request.ByteSize() - size
        if excess == 0:
            return request
        text = text[:-excess] if excess > 0 else text + "a" * -excess


class LimitsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster("--unified", "--worker_flags=--kv_cache_bytes=16MiB")
        cls.router = next(p for p in cls.cluster.processes if p["name"] == "router")
        cls.channel = grpc.insecure_channel(cls.cluster.router)
        cls.stub = pb_grpc.InferenceServiceStub(cls.channel)

    @classmethod
    def tearDownClass(cls):
        cls.channel.close()
        cls.cluster.stop()

    def code(self, request, channel=None, **options):
        stub = self.stub if channel is None else pb_grpc.InferenceServiceStub(channel)
        try:
            for _ in stub.Generate(request, timeout=DEADLINE, **options):
                pass
            return grpc.StatusCode.OK
        except grpc.RpcError as error:
            return error.code()

    def tearDown(self):
        self.assertEqual(self.code(greedy(ids_prompt([1, 2, 3]), 2)), grpc.StatusCode.OK, "it serves on")

    def test_numbers_beyond_their_bounds_cost_neither_time_nor_memory(self):
        top = 2 ** 31 - 1
        changes = [("n %d" % n, lambda r, n=n: setattr(r.sampling, "n", n)) for n in (0, 129, top, 2 ** 32 - 1)]
        changes += [("top_k %d" % k, lambda r, k=k: setattr(r.sampling, "top_k", k)) for k in (top + 1, 2 ** 32 - 1)]
        changes += [("top %d" % k, lambda r, k=k: setattr(r.logprobs, "top", k)) for k in (21, top, 2 ** 32 - 1)]
        changes += [("stop ids %d" % k, lambda r, k=k: r.stopping.stop_token_ids.extend(range(k))) for k in (65, 9999)]
        changes += [("stops %d" % k, lambda r, k=k: r.stopping.stop_strings.extend(["a"] * k)) for k in (17, 9999)]
        changes += [("biases %d" % k, lambda r, k=k: [r.sampling.logit_bias.add(token_id=i % 999, bias=1)
                                                     for i in range(k)]) for k in (1025, 9999)]
        requests = []
        for name, change in changes:
            request = greedy(ids_prompt([1, 2, 3]), 2)
            change(request)
            requests.append((name, request))
        for name, request in requests:
            self.assertEqual(self.code(request), grpc.StatusCode.INVALID_ARGUMENT, name)
        before, start = resident(self.router["pid"]), time.monotonic()
        for _ in range(20):
            for name, request in requests:
                self.code(request)
        each = (time.monotonic() - start) / 20 / len(requests)
        grown = resident(self.router["pid"]) - before
        print("a refusal took %.2f ms, client and all; the router grew by %d KiB in %d" % (
            1000 * each, grown, 20 * len(requests)))
        self.assertLessEqual(grown, 4096)

    def test_metadata_is_bounded(self):
        request = greedy(ids_prompt([1, 2, 3]), 2)
        self.assertEqual(self.code(request, metadata=[("x-filler", "m" * 8192)]), grpc.StatusCode.OK)
        for size in (20 << 10, 256 << 10, 8 << 20):
            with grpc.insecure_channel(self.cluster.router) as channel:
                code = self.code(request, channel, metadata=[("x-filler", "m" * size)])
            print("metadata of %d KiB: %s" % (size >> 10, code))
            self.assertIn(code, (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE))

    def test_a_message_may_have_its_limit_and_no_byte_more(self):
        for size, code in ((MESSAGE_LIMIT, grpc.StatusCode.INVALID_ARGUMENT),
                           (MESSAGE_LIMIT + 1, grpc.StatusCode.RESOURCE_EXHAUSTED)):
            self.assertEqual(self.code(message(size)), code, size)

    def test_a_compressed_message_is_refused_and_never_blown_up(self):
        bomb = message(128 << 20).SerializeToString()
        before = resident(self.router["pid"], "VmHWM")
        call = self.channel.unary_stream(GENERATE)
        with self.assertRaises(grpc.RpcError) as caught:
            list(call(bomb, timeout=DEADLINE, compression=grpc.Compression.Gzip))
        grown = resident(self.router["pid"], "VmHWM") - before
        print("a compressed message of 128 MiB: %s; the router's peak grew by %d KiB" % (caught.exception.code(), grown))
        self.assertIn(caught.exception.code(), (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.RESOURCE_EXHAUSTED))
        self.assertLessEqual(grown, 2 * MESSAGE_LIMIT >> 10)


if __name__ == "__main__":
    unittest.main()
