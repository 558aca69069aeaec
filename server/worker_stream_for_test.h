// A client of the worker's service: requests of the engine's kind, and streams
// read to their end.
#ifndef BATON_SERVER_WORKER_STREAM_FOR_TEST_H_
#define BATON_SERVER_WORKER_STREAM_FOR_TEST_H_

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "engine/generation_request.h"
#include "gtest/gtest.h"
#include "proto/baton/v1/worker.grpc.pb.h"
#include "server/edge/grpc_status.h"

namespace baton {

inline v1::WorkerRequest ToProto(const GenerationRequest& request) {
  v1::WorkerRequest out;
  out.mutable_id()->set_router_nonce(request.id.router_nonce);
  out.mutable_id()->set_counter(request.id.counter);
  out.set_sample_index(request.sample_index);
  out.set_num_samples(request.num_samples);
  out.set_attempt(3);
  out.mutable_token_ids()->Add(request.token_ids.begin(),
                               request.token_ids.end());
  out.set_original_prompt_tokens(request.original_prompt_tokens);
  const SamplingParams& from = request.sampling;
  v1::WorkerSampling& sampling = *out.mutable_sampling();
  sampling.set_temperature(from.temperature);
  sampling.set_top_p(from.top_p);
  sampling.set_top_k(from.top_k);
  sampling.set_seed(from.seed);
  sampling.set_repetition_penalty(from.repetition_penalty);
  sampling.set_presence_penalty(from.presence_penalty);
  sampling.set_frequency_penalty(from.frequency_penalty);
  for (const LogitBias& bias : from.logit_bias) {
    v1::LogitBias* const entry = sampling.add_logit_bias();
    entry->set_token_id(bias.token_id);
    entry->set_bias(bias.bias);
  }
  sampling.set_num_top_logprobs(from.num_top_logprobs);
  sampling.set_logprobs_after_truncation(from.logprobs_after_truncation);
  if (request.prompt_logprobs_from.has_value()) {
    out.set_prompt_logprobs_from(*request.prompt_logprobs_from);
  }
  out.set_max_tokens(request.max_tokens);
  return out;
}

using Alternatives = std::vector<std::pair<uint32_t, float>>;

struct Received {
  std::vector<float> prompt_logprobs;
  std::vector<Alternatives> prompt_top;
  std::vector<uint32_t> tokens;
  std::vector<float> logprobs;
  std::vector<Alternatives> top;
  v1::DecodeFinished finished;
  absl::Status status;
};

template <typename Message>
void AppendTop(const Message& message, std::vector<Alternatives>* top) {
  for (const v1::TopLogprobs& from : message.top_logprobs()) {
    Alternatives& to = top->emplace_back();
    for (int i = 0; i < from.token_ids_size(); ++i) {
      to.emplace_back(from.token_ids(i), from.logprobs(i));
    }
  }
}

inline void AppendChunk(const v1::TokenChunk& chunk, Received* to) {
  EXPECT_FALSE(to->finished.has_load()) << "after the end";
  EXPECT_EQ(chunk.first_token_index(), to->tokens.size());
  EXPECT_EQ(chunk.attempt(), 3u);
  EXPECT_EQ(chunk.logprobs_size(), chunk.token_ids_size());
  AppendTop(chunk, &to->top);
  to->tokens.insert(to->tokens.end(), chunk.token_ids().begin(),
                    chunk.token_ids().end());
  to->logprobs.insert(to->logprobs.end(), chunk.logprobs().begin(),
                      chunk.logprobs().end());
}

// Reads to the end, checking the order. By sample; each has the call's status,
// and the first what was told of the prompt.
inline std::map<uint32_t, Received> ReadSamples(
    const v1::WorkerRequest& request,
    grpc::ClientReader<v1::DecodeResponse>* reader) {
  std::map<uint32_t, Received> out;
  const uint32_t end = request.sample_index() +
                       (request.has_num_samples() ? request.num_samples() : 1);
  for (uint32_t i = request.sample_index(); i < end; ++i) out[i];
  v1::DecodeResponse response;
  while (reader->Read(&response)) {
    if (response.has_finished()) {
      Received& sample = out.at(response.finished().sample_index());
      EXPECT_FALSE(sample.finished.has_load()) << "finished twice";
      sample.finished = response.finished();
    } else if (response.has_prompt_logprobs()) {
      for (const auto& [i, sample] : out) EXPECT_TRUE(sample.tokens.empty());
      const v1::PromptLogprobs& prompt = response.prompt_logprobs();
      Received& first = out.at(request.sample_index());
      first.prompt_logprobs.insert(first.prompt_logprobs.end(),
                                   prompt.logprobs().begin(),
                                   prompt.logprobs().end());
      AppendTop(prompt, &first.prompt_top);
    } else {
      AppendChunk(response.chunk(), &out.at(response.chunk().sample_index()));
    }
  }
  const absl::Status status = FromGrpcStatus(reader->Finish());
  for (auto& [i, sample] : out) sample.status = status;
  return out;
}

inline std::map<uint32_t, Received> DecodeSamples(
    v1::WorkerService::Stub* stub, const v1::DecodeRequest& request) {
  grpc::ClientContext context;
  return ReadSamples(request.request(), stub->Decode(&context, request).get());
}

// The first sample.
inline Received Decode(v1::WorkerService::Stub* stub,
                       const v1::DecodeRequest& request) {
  return DecodeSamples(stub, request)[request.request().sample_index()];
}

inline v1::DecodeRequest DecodeOf(const GenerationRequest& request) {
  v1::DecodeRequest out;
  *out.mutable_request() = ToProto(request);
  return out;
}

}  // namespace baton

#endif  // BATON_SERVER_WORKER_STREAM_FOR_TEST_H_
