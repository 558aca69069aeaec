// A client of the worker's service: requests of the engine's kind, and streams
// read to their end.
#ifndef BATON_SERVER_WORKER_STREAM_FOR_TEST_H_
#define BATON_SERVER_WORKER_STREAM_FOR_TEST_H_

#include <grpcpp/grpcpp.h>

#include <cstdint>
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

// Reads to the end, checking the order.
inline Received Decode(v1::WorkerService::Stub* stub,
                       const v1::DecodeRequest& request) {
  Received out;
  grpc::ClientContext context;
  auto reader = stub->Decode(&context, request);
  v1::DecodeResponse response;
  while (reader->Read(&response)) {
    EXPECT_FALSE(out.finished.has_load()) << "after the end";
    if (response.has_finished()) {
      out.finished = response.finished();
      continue;
    }
    if (response.has_prompt_logprobs()) {
      EXPECT_TRUE(out.tokens.empty());
      const v1::PromptLogprobs& prompt = response.prompt_logprobs();
      out.prompt_logprobs.insert(out.prompt_logprobs.end(),
                                 prompt.logprobs().begin(),
                                 prompt.logprobs().end());
      AppendTop(prompt, &out.prompt_top);
      continue;
    }
    AppendTop(response.chunk(), &out.top);
    EXPECT_EQ(response.chunk().first_token_index(), out.tokens.size());
    EXPECT_EQ(response.chunk().attempt(), 3u);
    EXPECT_EQ(response.chunk().logprobs_size(),
              response.chunk().token_ids_size());
    out.tokens.insert(out.tokens.end(), response.chunk().token_ids().begin(),
                      response.chunk().token_ids().end());
    out.logprobs.insert(out.logprobs.end(), response.chunk().logprobs().begin(),
                        response.chunk().logprobs().end());
  }
  out.status = FromGrpcStatus(reader->Finish());
  return out;
}

inline v1::DecodeRequest DecodeOf(const GenerationRequest& request) {
  v1::DecodeRequest out;
  *out.mutable_request() = ToProto(request);
  return out;
}

}  // namespace baton

#endif  // BATON_SERVER_WORKER_STREAM_FOR_TEST_H_
