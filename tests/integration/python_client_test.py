#!/usr/bin/env python3
"""A foreign client: Debian's python3-grpcio with stubs made from the .proto files here,
against a prefill server, a decode server and a router as `baton local up` starts them."""

import unittest

import grpc

from cluster import (DEADLINE, Cluster, await_condition, errors_pb, golden, greedy, health_grpc, health_pb,
                     ids_prompt, pb, pb_grpc, text_prompt)


class PythonClientTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster("--worker_flags=--kv_cache_bytes=64MiB")
        cls.channel = grpc.insecure_channel(cls.cluster.router)
        cls.stub = pb_grpc.InferenceServiceStub(cls.channel)

    @classmethod
    def tearDownClass(cls):
        cls.channel.close()
        cls.cluster.stop()

    def generate(self, request):
        """(token ids, text, finished), after checking the stream's order."""
        ids, text, finished = [], "", None
        for response in self.stub.Generate(request, timeout=DEADLINE):
            self.assertIsNone(finished, "a message after the last")
            if response.WhichOneof("event") == "finished":
                finished = response.finished
                continue
            self.assertEqual(response.chunk.first_token_index, len(ids))
            self.assertEqual(len(response.chunk.logprobs), len(response.chunk.token_ids))
            ids += response.chunk.token_ids
            text += response.chunk.text
        return ids, text, finished

    def test_ids_and_text_stream_the_golden_tokens(self):
        case = golden("once")
        want = case["fp32"]["tokens"]
        for prompt in (ids_prompt(case["ids"]), text_prompt(case["text"])):
            ids, text, finished = self.generate(greedy(prompt, len(want)))
            self.assertEqual(ids, want)
            self.assertEqual(finished.finish_reason, pb.FINISH_REASON_LENGTH)
            self.assertEqual(finished.usage.prompt_tokens, len(case["ids"]))
            self.assertEqual(finished.usage.completion_tokens, len(want))
            self.assertTrue(finished.fingerprint)
            self.assertGreater(finished.timing.kv_transfer_bytes, 0)
            detokenized = self.stub.Detokenize(pb.DetokenizeRequest(token_ids=ids), timeout=DEADLINE)
            self.assertEqual(text, detokenized.text)

    def test_chat_is_templated_here(self):
        case = golden("chat_hello")
        chat = pb.Prompt(chat=pb.ChatPrompt(messages=[pb.ChatMessage(role="user", content="Hello!")]))
        tokenized = self.stub.Tokenize(pb.TokenizeRequest(prompt=chat), timeout=DEADLINE)
        self.assertEqual(list(tokenized.token_ids), case["ids"])
        ids, _, _ = self.generate(greedy(chat, 16))
        self.assertEqual(ids, case["fp32"]["tokens"][:16])

    def test_the_seed_that_was_drawn_repeats_the_text(self):
        request = pb.GenerateRequest(prompt=text_prompt("Once"), stopping=pb.StoppingParams(max_tokens=24))
        ids, _, finished = self.generate(request)
        request.sampling.seed = finished.seed
        again, _, finished_again = self.generate(request)
        self.assertEqual(again, ids)
        self.assertEqual(finished_again.seed, finished.seed)

    def test_a_bad_field_is_named_in_error_info(self):
        request = greedy(text_prompt("Once"), 4)
        request.sampling.top_p = 2
        with self.assertRaises(grpc.RpcError) as caught:
            self.generate(request)
        self.assertEqual(caught.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)
        metadata = dict(caught.exception.trailing_metadata())
        status = errors_pb.RpcStatus.FromString(metadata["grpc-status-details-bin"])
        info = next(d for d in status.details if d.type_url.endswith("/google.rpc.ErrorInfo"))
        info = errors_pb.ErrorInfo.FromString(info.value)
        self.assertEqual(info.domain, "baton")
        self.assertEqual(info.metadata["field"], "sampling.top_p")

    def test_cancelling_frees_every_block_on_both_sides(self):
        call = self.stub.Generate(greedy(text_prompt("Once"), 3000), timeout=DEADLINE)
        for _ in range(3):
            next(call)
        call.cancel()
        with self.assertRaises(grpc.RpcError) as caught:
            for _ in call:
                pass
        self.assertEqual(caught.exception.code(), grpc.StatusCode.CANCELLED)
        seconds = await_condition(self.cluster.is_idle, "free blocks")
        print("free %.3f s after the cancel" % seconds)

    def test_the_deadline_of_the_call_is_the_requests(self):
        with self.assertRaises(grpc.RpcError) as caught:
            for _ in self.stub.Generate(greedy(text_prompt("Once"), 4000), timeout=0.05):
                pass
        self.assertEqual(caught.exception.code(), grpc.StatusCode.DEADLINE_EXCEEDED)

    def test_every_server_says_it_is_serving(self):
        for process in self.cluster.processes:
            with grpc.insecure_channel(process["grpc"]) as channel:
                answer = health_grpc.HealthStub(channel).Check(health_pb.HealthCheckRequest(), timeout=DEADLINE)
            self.assertEqual(answer.status, health_pb.HealthCheckResponse.SERVING, process)

    def test_model_info(self):
        info = self.stub.GetModelInfo(pb.GetModelInfoRequest(), timeout=DEADLINE)
        self.assertEqual(info.model_name, "tiny-deepseek-v3")
        self.assertEqual(info.vocab_size, 4096)
        self.assertTrue(info.chat_supported)


if __name__ == "__main__":
    unittest.main()
