// The commands, end to end, against a router played by this test.
#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "proto/baton/v1/inference.grpc.pb.h"
#include "server/cli/bench.h"
#include "server/cli/chat.h"
#include "server/cli/generate.h"
#include "server/cli/health.h"
#include "server/edge/health.h"

namespace baton {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Streams "a", "b", "c", a token each; refuses prompts that say "fail".
class FakeRouter final : public v1::InferenceService::Service {
 public:
  grpc::Status Generate(
      grpc::ServerContext*, const v1::GenerateRequest* request,
      grpc::ServerWriter<v1::GenerateResponse>* writer) override {
    {
      absl::MutexLock lock(&mutex_);
      requests_.push_back(*request);
    }
    if (request->prompt().text().text() == "fail") {
      return {grpc::StatusCode::RESOURCE_EXHAUSTED, "the queue is full"};
    }
    const uint32_t num_tokens = request->stopping().has_max_tokens()
                                    ? request->stopping().max_tokens()
                                    : 3;
    const bool with_top = request->logprobs().top() > 0;
    for (uint32_t i = 1; request->logprobs().has_prompt_from() && i < 3; ++i) {
      v1::GenerateResponse response;
      v1::PromptLogprobs& prompt = *response.mutable_prompt_logprobs();
      prompt.set_first_token_index(i);
      prompt.add_token_ids(i);
      prompt.add_logprobs(-2);
      if (with_top) prompt.add_top_logprobs()->add_token_ids(i);
      if (with_top) prompt.mutable_top_logprobs(0)->add_logprobs(-0.5);
      writer->Write(response);
    }
    for (uint32_t i = 0; i < num_tokens; ++i) {
      v1::GenerateResponse response;
      if (with_top) {
        v1::TopLogprobs& top = *response.mutable_chunk()->add_top_logprobs();
        top.add_token_ids(7);
        top.add_logprobs(-0.25);
      }
      response.mutable_chunk()->set_first_token_index(i);
      response.mutable_chunk()->add_token_ids(40 + i);
      response.mutable_chunk()->add_logprobs(-1);
      response.mutable_chunk()->set_text(std::string(1, 'a' + i % 26));
      writer->Write(response);
    }
    v1::GenerateResponse response;
    v1::GenerateFinished& finished = *response.mutable_finished();
    finished.set_finish_reason(v1::FINISH_REASON_LENGTH);
    finished.set_seed(77);
    finished.mutable_usage()->set_prompt_tokens(5);
    finished.mutable_usage()->set_completion_tokens(num_tokens);
    finished.mutable_timing()->set_kv_transfer_bytes(4096);
    writer->Write(response);
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

 private:
  mutable absl::Mutex mutex_;
  std::vector<v1::GenerateRequest> requests_ ABSL_GUARDED_BY(mutex_);
};

class CommandsTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { EnableHealthAndReflection(); }

  CommandsTest() {
    int port = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(),
                             &port);
    builder.RegisterService(&router_);
    server_ = builder.BuildAndStart();
    endpoint_ = "127.0.0.1:" + std::to_string(port);
  }

  Console console() { return {in_, out_, err_}; }

  FakeRouter router_;
  std::unique_ptr<grpc::Server> server_;
  std::string endpoint_;
  std::istringstream in_;
  std::ostringstream out_;
  std::ostringstream err_;
};

TEST_F(CommandsTest, GenerateStreamsTheTextAndSumsUp) {
  GenerateOptions options;
  options.request.router = endpoint_;
  options.prompt = "Once";
  EXPECT_EQ(RunGenerate(options, console()), kExitOk);
  EXPECT_EQ(out_.str(), "abc\n");
  EXPECT_THAT(err_.str(), HasSubstr("finish LENGTH  prompt 5 tokens"));
  EXPECT_THAT(err_.str(), HasSubstr("seed 77"));
  EXPECT_THAT(err_.str(), HasSubstr("kv moved 4096 bytes"));
  EXPECT_EQ(router_.requests().at(0).prompt().text().text(), "Once");
}

TEST_F(CommandsTest, GeneratePrintsAlternativesAndThePromptAsJson) {
  GenerateOptions options;
  options.request.router = endpoint_;
  options.request.top_logprobs = 1;
  options.request.prompt_logprobs_from = 0;
  options.prompt = "Once";
  options.json = true;
  EXPECT_EQ(RunGenerate(options, console()), kExitOk);
  const nlohmann::json json = nlohmann::json::parse(out_.str());
  EXPECT_EQ(json["top_logprobs"].size(), 3u);
  EXPECT_EQ(json["top_logprobs"][2][0]["id"], 7);
  EXPECT_EQ(json["top_logprobs"][2][0]["logprob"], -0.25);
  EXPECT_EQ(json["prompt"]["first_token_index"], 1);
  EXPECT_EQ(json["prompt"]["token_ids"], (std::vector{1, 2}));
  EXPECT_EQ(json["prompt"]["logprobs"], (std::vector{-2, -2}));
  EXPECT_EQ(json["prompt"]["top_logprobs"][1][0]["id"], 2);
}

TEST_F(CommandsTest, GenerateReadsThePromptFromTheInput) {
  in_.str("From a pipe\nof two lines");
  GenerateOptions options;
  options.request.router = endpoint_;
  EXPECT_EQ(RunGenerate(options, console()), kExitOk);
  EXPECT_EQ(router_.requests().at(0).prompt().text().text(),
            "From a pipe\nof two lines");
}

TEST_F(CommandsTest, GenerateTakesIdsAndAnswersInJson) {
  GenerateOptions options;
  options.request.router = endpoint_;
  options.request.max_tokens = 2;
  options.token_ids = "0,17";
  options.json = true;
  EXPECT_EQ(RunGenerate(options, console()), kExitOk);
  EXPECT_THAT(router_.requests().at(0).prompt().token_ids().ids(),
              ElementsAre(0u, 17u));
  const auto json = nlohmann::json::parse(out_.str());
  EXPECT_EQ(json["text"], "ab");
  EXPECT_EQ(json["token_ids"], (std::vector<int>{40, 41}));
  EXPECT_EQ(json["finish_reason"], "LENGTH");
  EXPECT_EQ(json["seed"], 77);
  EXPECT_EQ(json["usage"]["completion_tokens"], 2);
  EXPECT_EQ(json["kv_transfer_bytes"], 4096);
}

TEST_F(CommandsTest, AFailedRequestExitsOneAndSaysWhatToDo) {
  GenerateOptions options;
  options.request.router = endpoint_;
  options.prompt = "fail";
  EXPECT_EQ(RunGenerate(options, console()), kExitFailed);
  EXPECT_THAT(err_.str(), HasSubstr("RESOURCE_EXHAUSTED: the queue is full; "
                                    "try again later"));
}

TEST_F(CommandsTest, NoRouterExitsOneAndNamesTheEndpoint) {
  server_->Shutdown();
  GenerateOptions options;
  options.request.router = endpoint_;
  options.prompt = "Once";
  EXPECT_EQ(RunGenerate(options, console()), kExitFailed);
  EXPECT_THAT(err_.str(), HasSubstr(endpoint_));
}

TEST_F(CommandsTest, BadTokenIdsAreUsage) {
  GenerateOptions options;
  options.token_ids = "1,two";
  EXPECT_EQ(RunGenerate(options, console()), kExitUsage);
  options.prompt = "both";
  EXPECT_FALSE(ValidateGenerate(options).ok());
}

TEST_F(CommandsTest, ChatKeepsTheConversation) {
  in_.str("Hello\n\nAnd then?\n");
  ChatOptions options;
  options.request.router = endpoint_;
  options.system = "Be brief.";
  EXPECT_EQ(RunChat(options, console()), kExitOk);
  const auto requests = router_.requests();
  ASSERT_EQ(requests.size(), 2u);
  std::string conversation;
  for (const v1::ChatMessage& m : requests[1].prompt().chat().messages()) {
    conversation += m.role() + ":" + m.content() + "|";
  }
  EXPECT_EQ(conversation,
            "system:Be brief.|user:Hello|assistant:abc|user:And then?|");
}

TEST_F(CommandsTest, HealthTellsServingFromGone) {
  HealthOptions options;
  options.endpoints = endpoint_;
  EXPECT_EQ(RunHealth(options, console()), kExitOk);
  EXPECT_EQ(out_.str(), endpoint_ + " SERVING\n");
  SetReadiness(server_.get(), false);
  EXPECT_EQ(RunHealth(options, console()), kExitFailed);
  EXPECT_THAT(out_.str(), HasSubstr("NOT_SERVING"));
  server_->Shutdown();
  EXPECT_EQ(RunHealth(options, console()), kExitFailed);
  options.endpoints = ",";
  EXPECT_EQ(RunHealth(options, console()), kExitUsage);
}

TEST_F(CommandsTest, BenchMeasuresEachLevel) {
  BenchOptions options;
  options.router = endpoint_;
  options.clients = {"1", "3"};
  options.requests = 7;
  options.prompt_tokens = 4;
  options.max_tokens = 5;
  options.pids = {std::to_string(getpid())};
  options.json_out = ::testing::TempDir() + "bench.json";
  EXPECT_EQ(RunBench(options, console()), kExitOk);
  EXPECT_THAT(out_.str(), HasSubstr("tokens/s"));
  nlohmann::json json;
  std::ifstream(options.json_out) >> json;
  ASSERT_EQ(json["levels"].size(), 2u);
  EXPECT_EQ(json["levels"][1]["clients"], 3);
  EXPECT_EQ(json["levels"][1]["requests"], 7);
  EXPECT_EQ(json["levels"][1]["output_tokens"], 35);
  EXPECT_GT(json["levels"][1]["servers"][0]["resident_bytes"], 0);

  const auto requests = router_.requests();
  ASSERT_EQ(requests.size(), 14u);
  for (const v1::GenerateRequest& request : requests) {
    EXPECT_EQ(request.prompt().token_ids().ids_size(), 4);
    EXPECT_TRUE(request.stopping().ignore_eos());
    for (const uint32_t id : request.prompt().token_ids().ids()) {
      EXPECT_GE(id, 16u);
      EXPECT_LT(id, 100u);
    }
  }
  EXPECT_NE(requests[0].prompt().SerializeAsString(),
            requests[1].prompt().SerializeAsString());
}

TEST_F(CommandsTest, AnOpenLoopSendsAtItsRateAndDrawsTheSweep) {
  BenchOptions options;
  options.router = endpoint_;
  options.rate = {"500", "1000"};
  options.requests = 10;
  options.prompt_tokens = 4;
  options.max_tokens = 5;
  options.sweep = true;
  options.svg_out = ::testing::TempDir() + "sweep.svg";
  options.json_out = ::testing::TempDir() + "open.json";
  EXPECT_EQ(RunBench(options, console()), kExitOk);
  nlohmann::json json;
  std::ifstream(options.json_out) >> json;
  ASSERT_EQ(json["levels"].size(), 2u);
  EXPECT_EQ(json["levels"][1]["rate"], 1000);
  EXPECT_EQ(json["levels"][1]["requests"], 10);
  EXPECT_GT(json["levels"][1]["input_tokens_per_second"], 0);
  std::stringstream svg;
  svg << std::ifstream(options.svg_out).rdbuf();
  EXPECT_THAT(svg.str(), HasSubstr("<title>1000/s: "));
  EXPECT_EQ(router_.requests().size(), 20u);
}

TEST_F(CommandsTest, ATraceGivesTimesAndLengths) {
  BenchOptions options;
  options.router = endpoint_;
  options.trace = ::testing::TempDir() + "trace.csv";
  std::ofstream(options.trace) << "TIMESTAMP,ContextTokens,GeneratedTokens\n"
                                  "2023-11-16 18:17:03.97,7,3\n"
                                  "2023-11-16 18:18:04.97,900,2\n";
  options.rate = {"100"};  // A minute would be too long.
  EXPECT_EQ(RunBench(options, console()), kExitOk);
  const auto requests = router_.requests();
  ASSERT_EQ(requests.size(), 2u);
  const bool in_order = requests[0].stopping().max_tokens() == 3;
  const v1::GenerateRequest& first = requests[in_order ? 0 : 1];
  const v1::GenerateRequest& second = requests[in_order ? 1 : 0];
  EXPECT_EQ(first.prompt().token_ids().ids_size(), 7);
  EXPECT_EQ(second.prompt().token_ids().ids_size(), 128);
  EXPECT_EQ(second.stopping().max_tokens(), 2u);
}

TEST_F(CommandsTest, BenchWithoutARouterFails) {
  server_->Shutdown();
  BenchOptions options;
  options.router = endpoint_;
  EXPECT_EQ(RunBench(options, console()), kExitFailed);
  EXPECT_THAT(err_.str(), HasSubstr("baton bench: UNAVAILABLE"));
  options.clients = {"0"};
  EXPECT_FALSE(ValidateBench(options).ok());
  for (const char* rate : {"0", "-1", "nan", "inf", "fast"}) {
    options.rate = {rate};
    EXPECT_FALSE(ValidateBench(options).ok()) << rate;
  }
  options.rate = {"0.5"};
  EXPECT_TRUE(ValidateBench(options).ok());
  options.trace = "/nowhere/at/all";
  EXPECT_FALSE(ValidateBench(options).ok());
}

}  // namespace
}  // namespace baton
