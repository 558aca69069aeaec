#!/usr/bin/env python3
"""A foreign client: Debian's python3-grpcio with stubs made from the .proto files here,
against a prefill server, a decode server and a router as `baton local up` starts them."""

import unittest

import grpc

from cluster import (DEADLINE, Cluster, await_condition, errors_pb, golden, greedy, health_grpc, health_pb,
                     ids_prompt, pb, pb_grpc, text_prompt)


def bad_field(error):
    """The field that an INVALID_ARGUMENT names."""
    metadata = dict(error.trailing_metadata())
    status = errors_pb.RpcStatus.FromString(metadata["grpc-status-details-bin"])
    info = next(d for d in status.details if d.type_url.endswith("/google.rpc.ErrorInfo"))
    info = errors_pb.ErrorInfo.FromString(info.value)
    assert info.domain == "baton"
    return info.metadata["field"]


class Answer:
    """One sample of a stream read to its end, after checking its order."""

    def __init__(self, test, stream=()):
        self.ids, self.logprobs, self.top, self.text, self.finished = [], [], [], "", None
        self.prompt_ids, self.prompt_logprobs, self.prompt_from, self.chunk_sizes = [], [], None, []
        for response in stream:
            self.add(test, response)

    def add(self, test, response):
        test.assertIsNone(self.finished, "a message after the last")
        event = response.WhichOneof("event")
        if event == "finished":
            self.finished = response.finished
        elif event == "prompt_logprobs":
            self.add_prompt(test, response.prompt_logprobs)
        else:
            self.add_chunk(test, response.chunk)

    def add_prompt(self, test, prompt):
        test.assertEqual(self.ids, [], "the prompt behind the answer")
        if self.prompt_from is None:
            self.prompt_from = prompt.first_token_index
        test.assertEqual(prompt.first_token_index, self.prompt_from + len(self.prompt_ids))
        test.assertEqual(len(prompt.logprobs), len(prompt.token_ids))
        self.prompt_ids += prompt.token_ids
        self.prompt_logprobs += prompt.logprobs

    def add_chunk(self, test, chunk):
        test.assertEqual(chunk.first_token_index, len(self.ids))
        test.assertEqual(len(chunk.logprobs), len(chunk.token_ids))
        self.ids += chunk.token_ids
        self.logprobs += chunk.logprobs
        self.top += [dict(zip(top.token_ids, top.logprobs)) for top in chunk.top_logprobs]
        self.text += chunk.text
        self.chunk_sizes.append(len(chunk.token_ids))


class ClusterTest(unittest.TestCase):
    FLAGS = []

    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster("--worker_flags=--kv_cache_bytes=64MiB", *cls.FLAGS)
        cls.channel = grpc.insecure_channel(cls.cluster.router)
        cls.stub = pb_grpc.InferenceServiceStub(cls.channel)

    @classmethod
    def tearDownClass(cls):
        cls.channel.close()
        cls.cluster.stop()

    def answer(self, request):
        return Answer(self, self.stub.Generate(request, timeout=DEADLINE))

    def generate(self, request):
        answer = self.answer(request)
        return answer.ids, answer.text, answer.finished


class PythonClientTest(ClusterTest):
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
        self.assertEqual(bad_field(caught.exception), "sampling.top_p")

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


class SamplingTest(ClusterTest):
    def test_penalties_choose_among_the_alternatives_as_they_are_defined(self):
        plain = greedy(text_prompt("Once"), 40)
        request = greedy(text_prompt("Once"), 40)
        request.sampling.presence_penalty = 1.5
        request.sampling.frequency_penalty = 0.75
        request.logprobs.top = 20
        answer = self.answer(request)
        self.assertNotEqual(answer.ids, self.answer(plain).ids)
        decided = 0
        for i, (chosen, top) in enumerate(zip(answer.ids, answer.top)):
            self.assertEqual(len(top), 20)
            self.assertEqual(list(top.values()), sorted(top.values(), reverse=True))
            if chosen in top:
                self.assertEqual(answer.logprobs[i], top[chosen])
            # Differences of log-probabilities are those of logits. Of tokens that are not listed, none is above
            # the least listed.
            counts = {t: answer.ids[:i].count(t) for t in top}
            modified = {t: p - 0.75 * counts[t] - 1.5 * (counts[t] > 0) for t, p in top.items()}
            best, second = sorted(modified.values(), reverse=True)[:2]
            if best - max(second, min(top.values())) < 1e-3:
                continue  # A token that is not listed may win, or rounding decide.
            self.assertEqual(chosen, max(modified, key=modified.get), i)
            decided += 1
        self.assertGreater(decided, 20)

    def test_a_repetition_penalty_repeats_less(self):
        request = greedy(text_prompt("Once"), 60)
        plain = self.answer(request).ids
        request.sampling.repetition_penalty = 2
        self.assertGreater(len(set(self.answer(request).ids)), len(set(plain)))

    def test_biases_force_and_forbid(self):
        case = golden("once")
        first = case["fp32"]["tokens"][0]
        for temperature in (0, 1):
            request = greedy(text_prompt("Once"), 8)
            request.sampling.temperature = temperature
            request.sampling.logit_bias.add(token_id=777, bias=100)
            answer = self.answer(request)
            self.assertEqual(answer.ids, [777] * 8)
            self.assertLess(max(answer.logprobs), -0.1, "of the unmodified logits")
            request.logprobs.after_truncation = True
            self.assertAlmostEqual(min(self.answer(request).logprobs), 0, places=3)
        request = greedy(ids_prompt(case["ids"]), 8)
        request.sampling.logit_bias.add(token_id=first, bias=-100)
        self.assertNotIn(first, self.answer(request).ids)

    def test_nothing_stops_before_min_tokens(self):
        case = golden("once")
        tokens = case["fp32"]["tokens"]
        request = greedy(ids_prompt(case["ids"]), 16)
        request.stopping.stop_token_ids.extend(set(tokens[:3]))
        self.assertEqual(self.answer(request).ids, tokens[:1])
        request.stopping.min_tokens = 5
        answer = self.answer(request)
        self.assertGreater(len(answer.ids), 5)
        self.assertFalse(set(tokens[:3]) & set(answer.ids[:5]))

    def test_an_answer_scored_as_a_prompt_has_the_same_log_probabilities(self):
        case = golden("once")
        answer = self.answer(greedy(ids_prompt(case["ids"]), 70))
        request = greedy(ids_prompt(case["ids"] + answer.ids), 2)
        request.logprobs.prompt_from = len(case["ids"])
        scored = self.answer(request)
        self.assertEqual(scored.prompt_from, len(case["ids"]))
        self.assertEqual(scored.prompt_ids, answer.ids)
        self.assertEqual(scored.prompt_logprobs, answer.logprobs)
        self.assertEqual(len(scored.ids), 2)

    def test_the_text_is_told_as_it_was_asked(self):
        request = greedy(text_prompt("Once"), 40)
        whole = self.answer(request)
        self.assertGreater(len(whole.text), 20)
        stop = whole.text[10:14]
        end = whole.text.index(stop)
        request.stopping.stop_strings.append(stop)
        self.assertEqual(self.answer(request).text, whole.text[:end])
        request.stopping.include_stop_string = True
        self.assertEqual(self.answer(request).text, whole.text[:end] + stop)
        request.stopping.min_tokens = 40
        request.output.stream_interval = 16
        coalesced = self.answer(request)
        self.assertEqual(coalesced.text, whole.text)
        self.assertGreaterEqual(min(coalesced.chunk_sizes[1:-1]), 16)
        self.assertLessEqual(len(coalesced.chunk_sizes), 4)

    def test_limits_name_their_fields(self):
        def bias(request, *ids):
            for token_id in ids:
                request.sampling.logit_bias.add(token_id=token_id, bias=1)

        for field, spoil in (
                ("sampling.repetition_penalty", lambda r: setattr(r.sampling, "repetition_penalty", 0)),
                ("sampling.presence_penalty", lambda r: setattr(r.sampling, "presence_penalty", 2.5)),
                ("sampling.n", lambda r: setattr(r.sampling, "n", 129)),
                ("sampling.frequency_penalty", lambda r: setattr(r.sampling, "frequency_penalty", float("nan"))),
                ("sampling.logit_bias", lambda r: bias(r, 5, 5)),
                ("sampling.logit_bias", lambda r: bias(r, *range(1025))),
                ("sampling.logit_bias[1]", lambda r: bias(r, 0, 4096)),
                ("stopping.min_tokens", lambda r: setattr(r.stopping, "min_tokens", 9)),
                ("logprobs.top", lambda r: setattr(r.logprobs, "top", 21)),
                ("logprobs.prompt_from", lambda r: setattr(r.logprobs, "prompt_from", 1000)),
                ("output.stream_interval", lambda r: setattr(r.output, "stream_interval", 0))):
            request = greedy(text_prompt("Once"), 8)
            spoil(request)
            with self.assertRaises(grpc.RpcError, msg=field) as caught:
                self.answer(request)
            self.assertEqual(caught.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)
            self.assertEqual(bad_field(caught.exception), field)


class SamplesTest(ClusterTest):
    """Three samples of a prompt, through a prefill and a decode server."""

    def answers(self, request):
        answers = [Answer(self) for _ in range(request.sampling.n)]
        for response in self.stub.Generate(request, timeout=DEADLINE):
            index = getattr(response, response.WhichOneof("event")).sample_index
            answers[index].add(self, response)
        for index, answer in enumerate(answers):
            self.assertIsNotNone(answer.finished, index)
            self.assertEqual(answer.finished.usage.completion_tokens, len(answer.ids))
        return answers

    @staticmethod
    def request(max_tokens=32):
        request = greedy(text_prompt("Once"), max_tokens)
        request.sampling.temperature = 1
        request.sampling.seed = 7
        request.sampling.n = 3
        return request

    def test_each_draws_its_own_and_the_first_is_what_it_is_alone(self):
        request = self.request()
        answers = self.answers(request)
        self.assertEqual(len({tuple(a.ids) for a in answers}), 3)
        for answer in answers:
            self.assertEqual(len(answer.ids), 32)
            self.assertEqual(answer.finished.finish_reason, pb.FINISH_REASON_LENGTH)
            self.assertEqual(answer.finished.seed, 7)
            self.assertEqual(answer.finished.fingerprint, answers[0].finished.fingerprint)
            self.assertEqual(answer.finished.usage.prompt_tokens, answers[0].finished.usage.prompt_tokens)
        self.assertEqual([a.ids for a in self.answers(request)], [a.ids for a in answers])
        request.sampling.n = 1
        self.assertEqual(self.answer(request).ids, answers[0].ids)

    def test_greedy_samples_are_all_the_golden_tokens(self):
        case = golden("once")
        want = case["fp32"]["tokens"]
        request = greedy(ids_prompt(case["ids"]), len(want))
        request.sampling.n = 3
        for answer in self.answers(request):
            self.assertEqual(answer.ids, want)

    def test_a_stop_string_ends_its_sample_alone(self):
        request = self.request(400)
        whole = self.answers(request)
        # What the second alone says, early.
        stop = next(word for word in (whole[1].text[i:i + 6] for i in range(20, len(whole[1].text)))
                    if all(word not in whole[i].text for i in (0, 2)))
        request.stopping.stop_strings.append(stop)
        answers = self.answers(request)
        self.assertEqual(answers[1].text, whole[1].text[:whole[1].text.index(stop)])
        self.assertEqual(answers[1].finished.stop_string, stop)
        for index in (0, 2):
            self.assertEqual(answers[index].ids, whole[index].ids)
            self.assertEqual(answers[index].finished.finish_reason, pb.FINISH_REASON_LENGTH)
        await_condition(self.cluster.is_idle, "free blocks")

    def test_the_prompt_is_told_once_before_all(self):
        request = self.request(8)
        request.logprobs.prompt_from = 1
        prompt, chunks = [], 0
        for response in self.stub.Generate(request, timeout=DEADLINE):
            event = response.WhichOneof("event")
            if event == "prompt_logprobs":
                self.assertEqual(chunks, 0)
                prompt += response.prompt_logprobs.token_ids
            elif event == "chunk":
                chunks += 1
        request.sampling.n = 1
        self.assertEqual(prompt, self.answer(request).prompt_ids)

    def test_cancelling_frees_every_block(self):
        call = self.stub.Generate(self.request(3000), timeout=DEADLINE)
        for _ in range(6):
            next(call)
        call.cancel()
        await_condition(self.cluster.is_idle, "free blocks")


class UnifiedSamplesTest(SamplesTest):
    FLAGS = ["--unified"]


if __name__ == "__main__":
    unittest.main()
