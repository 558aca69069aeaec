// A router played by a test, and a fixture that serves it.
#ifndef BATON_SERVER_CLI_FAKE_ROUTER_FOR_TEST_H_
#define BATON_SERVER_CLI_FAKE_ROUTER_FOR_TEST_H_

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "proto/baton/v1/inference.grpc.pb.h"
#include "server/cli/console.h"
#include "server/edge/health.h"
#include "server/edge/served_for_test.h"

namespace baton {

// Streams "a", "b", "c", a token each, of sample 1 "b", "c", "d" and so on, in
// turns; refuses prompts that say "fail".
class FakeRouter final : public v1::InferenceService::Service {
 public:
  grpc::Status Generate(
      grpc::ServerContext*, const v1::GenerateRequest* request,
      grpc::ServerWriter<v1::GenerateResponse>* writer) override {
    {
      absl::MutexLock lock(&mutex_);
      requests_.push_back(*request);
    }
    on_request_();
    if (request->prompt().text().text() == "fail") {
      return {grpc::StatusCode::RESOURCE_EXHAUSTED, "the queue is full"};
    }
    const uint32_t num_tokens = request->stopping().has_max_tokens()
                                    ? request->stopping().max_tokens()
                                    : 3;
    const uint32_t num_samples = std::max(request->sampling().n(), 1u);
    const bool with_top = request->logprobs().top() > 0;
    for (uint32_t i = 1; request->logprobs().has_prompt_from() && i < 3; ++i) {
      writer->Write(PromptToken(i, with_top));
    }
    for (uint32_t i = 0; i < num_tokens; ++i) {
      for (uint32_t s = 0; s < num_samples; ++s) {
        writer->Write(Token(s, i, with_top));
      }
    }
    if (request->prompt().text().text() == "strange") {
      writer->Write(Token(num_samples, 0, false));
    }
    // The last one ends first.
    for (uint32_t s = num_samples; s-- > 0;) {
      if (s == 1 && request->prompt().text().text() == "no end") continue;
      writer->Write(Finished(s, num_tokens));
    }
    return grpc::Status::OK;
  }

  grpc::Status GetModelInfo(grpc::ServerContext*,
                            const v1::GetModelInfoRequest*,
                            v1::GetModelInfoResponse* response) override {
    response->set_vocab_size(100);
    return grpc::Status::OK;
  }

  std::vector<v1::GenerateRequest> requests() const {
    absl::MutexLock lock(&mutex_);
    return requests_;
  }
  // Before any request; called by each.
  void OnRequest(std::function<void()> act) { on_request_ = std::move(act); }

 private:
  static v1::GenerateResponse PromptToken(uint32_t i, bool with_top) {
    v1::GenerateResponse response;
    v1::PromptLogprobs& prompt = *response.mutable_prompt_logprobs();
    prompt.set_first_token_index(i);
    prompt.add_token_ids(i);
    prompt.add_logprobs(-2);
    if (with_top) prompt.add_top_logprobs()->add_token_ids(i);
    if (with_top) prompt.mutable_top_logprobs(0)->add_logprobs(-0.5);
    return response;
  }
  static v1::GenerateResponse Token(uint32_t sample, uint32_t i,
                                    bool with_top) {
    v1::GenerateResponse response;
    v1::GenerateChunk& chunk = *response.mutable_chunk();
    if (with_top) {
      v1::TopLogprobs& top = *chunk.add_top_logprobs();
      top.add_token_ids(7);
      top.add_logprobs(-0.25);
    }
    chunk.set_sample_index(sample);
    chunk.set_first_token_index(i);
    chunk.add_token_ids(40 + sample + i);
    chunk.add_logprobs(-1);
    chunk.set_text(std::string(1, 'a' + (sample + i) % 26));
    return response;
  }
  static v1::GenerateResponse Finished(uint32_t sample, uint32_t num_tokens) {
    v1::GenerateResponse response;
    v1::GenerateFinished& finished = *response.mutable_finished();
    finished.set_sample_index(sample);
    finished.set_finish_reason(v1::FINISH_REASON_LENGTH);
    finished.set_seed(77);
    finished.mutable_usage()->set_prompt_tokens(5);
    finished.mutable_usage()->set_cached_tokens(4);
    finished.mutable_usage()->set_decode_cached_tokens(3);
    finished.mutable_usage()->set_completion_tokens(num_tokens);
    finished.mutable_timing()->set_kv_transfer_bytes(4096);
    return response;
  }

  std::function<void()> on_request_ = [] {};
  mutable absl::Mutex mutex_;
  std::vector<v1::GenerateRequest> requests_ ABSL_GUARDED_BY(mutex_);
};

class FakeRouterTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { EnableHealthAndReflection(); }

  Console console() { return {in_, out_, err_}; }

  FakeRouter router_;
  ServedForTest served_{&router_};
  std::istringstream in_;
  std::ostringstream out_;
  std::ostringstream err_;
};

}  // namespace baton

#endif  // BATON_SERVER_CLI_FAKE_ROUTER_FOR_TEST_H_
