#include "server/router/router_for_test.h"

#include <prometheus/text_serializer.h>

#include <chrono>
#include <cstdlib>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "gtest/gtest.h"
#include "server/edge/grpc_limits.h"
#include "server/router/routing_policy.h"

namespace baton {

const TextModel& DemoText() {
  static const auto* const text = [] {
    absl::StatusOr<TextModel> loaded = LoadTextModel("models/tiny-deepseek-v3");
    CHECK_OK(loaded.status());
    return new TextModel(*std::move(loaded));
  }();
  return *text;
}

v1::GetWorkerInfoResponse DemoInfo(v1::WorkerRole role) {
  v1::GetWorkerInfoResponse info;
  info.set_role(role);
  info.set_max_context_tokens(4096);
  info.set_vocab_size(DemoText().vocab_size);
  info.set_fingerprint("fingerprint-1");
  info.set_text_hash(DemoText().text_hash);
  info.set_incarnation(1);
  if (role != v1::WORKER_ROLE_UNIFIED) info.add_kv_transports("tcp");
  return info;
}

uint32_t LetterToken(uint32_t i) {
  static const uint32_t first = DemoText().tokenizer->Encode("a", false)->at(0);
  return first + i % 26;
}

std::vector<uint32_t> LetterTokens(uint32_t first, uint32_t count) {
  std::vector<uint32_t> ids;
  for (uint32_t i = first; i < first + count; ++i) {
    ids.push_back(LetterToken(i));
  }
  return ids;
}

GenerateOutcome ReadAll(grpc::ClientReader<v1::GenerateResponse>* reader) {
  GenerateOutcome outcome;
  v1::GenerateResponse response;
  while (reader->Read(&response)) {
    const v1::GenerateChunk& chunk = response.chunk();
    const uint32_t index = response.has_finished()
                               ? response.finished().sample_index()
                               : chunk.sample_index();
    GenerateOutcome& sample = index == 0 ? outcome : outcome.samples[index];
    EXPECT_FALSE(sample.finished.has_value()) << "a message after the last";
    if (response.has_finished()) {
      sample.finished = response.finished();
      continue;
    }
    EXPECT_EQ(chunk.first_token_index(), sample.token_ids.size());
    EXPECT_EQ(chunk.token_ids_size(), chunk.logprobs_size());
    sample.token_ids.insert(sample.token_ids.end(), chunk.token_ids().begin(),
                            chunk.token_ids().end());
    sample.logprobs.insert(sample.logprobs.end(), chunk.logprobs().begin(),
                           chunk.logprobs().end());
    sample.text += chunk.text();
  }
  outcome.status = reader->Finish();
  return outcome;
}

Router::Options RouterForTest::Options(
    const std::vector<const FakeWorker*>& workers) {
  Router::Options options;
  options.model_name = "demo";
  for (const FakeWorker* worker : workers) {
    options.workers.push_back({worker->address(), worker->role()});
  }
  options.make_policy = [](v1::WorkerRole) {
    return MakeRoutingPolicy("least_loaded");
  };
  options.release_grace = absl::Milliseconds(100);
  return options;
}

RouterForTest::RouterForTest(Router::Options options) {
  router_ =
      std::make_unique<Router>(std::move(options), &DemoText(), &registry_);
  service_ = std::make_unique<InferenceService>(router_.get(), &gate_);
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(),
                           &port);
  SetGrpcLimits(&builder);
  builder.RegisterService(service_.get());
  server_ = builder.BuildAndStart();
  CHECK(server_ != nullptr);
  address_ = absl::StrCat("127.0.0.1:", port);
  stub_ = v1::InferenceService::NewStub(
      grpc::CreateChannel(address_, grpc::InsecureChannelCredentials()));
}

RouterForTest::~RouterForTest() {
  server_->Shutdown(std::chrono::system_clock::now());
  server_->Wait();
}

GenerateOutcome RouterForTest::Generate(const v1::GenerateRequest& request) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() +
                       std::chrono::seconds(60));
  return ReadAll(stub_->Generate(&context, request).get());
}

double RouterForTest::Metric(const std::string& series) {
  router_->UpdateGauges();
  std::ostringstream text;
  prometheus::TextSerializer().Serialize(text, registry_.Collect());
  const std::string all = "\n" + text.str();
  const size_t found = all.find("\n" + series + " ");
  if (found == std::string::npos) return 0;
  return std::atof(all.c_str() + found + series.size() + 2);
}

v1::GenerateRequest IdsRequest(uint32_t max_tokens) {
  v1::GenerateRequest request;
  for (uint32_t id : {1, 2, 3}) {
    request.mutable_prompt()->mutable_token_ids()->add_ids(id);
  }
  request.mutable_sampling()->set_temperature(0);
  request.mutable_stopping()->set_max_tokens(max_tokens);
  return request;
}

FakeWorker::PrefillScript GoodPrefill() {
  return [](const v1::WorkerRequest& request, FakePrefillStream* stream) {
    SendHandle(stream, absl::StrCat("handle ", request.id().counter()));
    v1::PrefillResponse progress;
    progress.mutable_progress()->set_computed_tokens(
        request.original_prompt_tokens());
    stream->Send(progress);
    stream->SendTokens(0, LetterTokens(0, 1));
    SendReleased(stream);
    return grpc::Status::OK;
  };
}

FakeWorker::DecodeScript GoodDecode() {
  return [](const v1::DecodeRequest& request, FakeDecodeStream* stream) {
    const uint32_t max_tokens = request.request().max_tokens();
    const uint32_t num_samples = request.request().has_num_samples()
                                     ? request.request().num_samples()
                                     : 1;
    for (uint32_t i = 0; i < max_tokens; ++i) {
      for (uint32_t s = 0; s < num_samples; ++s) {
        stream->SendTokens(i, LetterTokens(s + i, 1), s);
      }
    }
    for (uint32_t s = 0; s < num_samples; ++s) {
      SendFinished(stream, v1::WORKER_FINISH_REASON_LENGTH, max_tokens, s);
    }
    return grpc::Status::OK;
  };
}

}  // namespace baton
