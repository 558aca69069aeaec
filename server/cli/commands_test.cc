// The commands, end to end, against a router played by this test.
#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/field_error.h"
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
    finished.mutable_usage()->set_completion_tokens(num_tokens);
    finished.mutable_timing()->set_kv_transfer_bytes(4096);
    return response;
  }

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

TEST_F(CommandsTest, GeneratePrintsEachSampleWhenItIsWhole) {
  GenerateOptions options;
  options.request.router = endpoint_;
  options.request.n = 3;
  options.prompt = "Once";
  EXPECT_EQ(RunGenerate(options, console()), kExitOk);
  EXPECT_EQ(out_.str(),
            "--- sample 2\ncde\n--- sample 1\nbcd\n--- sample 0\nabc\n");
  EXPECT_THAT(err_.str(), HasSubstr("finish 3 LENGTH  prompt 5 "
                                    "tokens (0 cached)  output 9 tokens"));
  EXPECT_EQ(router_.requests().at(0).sampling().n(), 3u);
}

TEST_F(CommandsTest, GeneratePrintsALineOfJsonForEachSample) {
  GenerateOptions options;
  options.request.router = endpoint_;
  options.request.n = 2;
  options.request.prompt_logprobs_from = 1;
  options.prompt = "Once";
  options.json = true;
  EXPECT_EQ(RunGenerate(options, console()), kExitOk);
  std::istringstream lines(out_.str());
  std::string line;
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(std::getline(lines, line));
    const auto json = nlohmann::json::parse(line);
    EXPECT_EQ(json["sample_index"], i);
    EXPECT_EQ(json["text"], i == 0 ? "abc" : "bcd");
    EXPECT_EQ(json["usage"]["completion_tokens"], 3);
    EXPECT_EQ(json.contains("prompt"), i == 0);
  }
  EXPECT_FALSE(std::getline(lines, line));
}

TEST_F(CommandsTest, SamplesThatWereNotAskedOrDidNotEndAreAnError) {
  for (const char* prompt : {"strange", "no end"}) {
    GenerateOptions options;
    options.request.router = endpoint_;
    options.request.n = 2;
    options.prompt = prompt;
    EXPECT_EQ(RunGenerate(options, console()), kExitFailed) << prompt;
  }
  EXPECT_THAT(err_.str(), HasSubstr("a sample that was not asked for"));
  EXPECT_THAT(err_.str(), HasSubstr("did not finish every sample"));
}

TEST_F(CommandsTest, LogProbabilitiesThatNothingWouldPrintAreRefused) {
  GenerateOptions generate;
  ChatOptions chat;
  EXPECT_TRUE(ValidateGenerate(generate).ok());
  EXPECT_TRUE(ValidateChat(chat).ok());
  for (const char* name :
       {"top_logprobs", "prompt_logprobs_from", "logprobs_after_truncation"}) {
    RequestOptions request;
    if (name == std::string("top_logprobs")) request.top_logprobs = 2;
    if (name == std::string("prompt_logprobs_from")) {
      request.prompt_logprobs_from = 0;
    }
    if (name == std::string("logprobs_after_truncation")) {
      request.logprobs_after_truncation = true;
    }
    generate.request = chat.request = request;
    generate.json = false;
    EXPECT_EQ(ErrorField(ValidateGenerate(generate)), name);
    EXPECT_EQ(ErrorField(ValidateChat(chat)), name);
    generate.json = true;
    EXPECT_TRUE(ValidateGenerate(generate).ok()) << name;
  }
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

TEST_F(CommandsTest, BenchCountsTheTokensOfAllSamples) {
  BenchOptions options;
  options.router = endpoint_;
  options.clients = {"2"};
  options.requests = 3;
  options.max_tokens = 5;
  options.n = 4;
  options.json_out = ::testing::TempDir() + "samples.json";
  EXPECT_EQ(RunBench(options, console()), kExitOk);
  nlohmann::json json;
  std::ifstream(options.json_out) >> json;
  EXPECT_EQ(json["n"], 4);
  EXPECT_EQ(json["levels"][0]["requests"], 3);
  EXPECT_EQ(json["levels"][0]["output_tokens"], 3 * 4 * 5);
  EXPECT_EQ(router_.requests().at(0).sampling().n(), 4u);
}

TEST_F(CommandsTest, BenchRefusesContradictions) {
  const auto refused = [](void (*change)(BenchOptions&)) {
    BenchOptions options;
    change(options);
    return ErrorField(ValidateBench(options)).value_or("-");
  };
  EXPECT_EQ(refused([](BenchOptions&) {}), "-");
  EXPECT_EQ(refused([](BenchOptions& o) {
              o.clients = {"1"};
              o.rate = {"1"};
            }),
            "clients");
  EXPECT_EQ(refused([](BenchOptions& o) {
              o.clients = {"1"};
              o.trace = "t";
            }),
            "clients");
  EXPECT_EQ(refused([](BenchOptions& o) { o.svg_out = "x.svg"; }), "svg_out");
  EXPECT_EQ(refused([](BenchOptions& o) { o.router = "localhost"; }), "router");
}

TEST_F(CommandsTest, BenchFindsOutAtTheStartWhatItCannotWrite) {
  BenchOptions options;
  options.json_out = "/nowhere/at/all";
  EXPECT_EQ(ErrorField(ValidateBench(options)), "json_out");
  options.json_out = "";
  options.sweep = true;
  options.svg_out = "/nowhere/at/all";
  EXPECT_EQ(ErrorField(ValidateBench(options)), "svg_out");
  options.svg_out = ::testing::TempDir() + "checked.svg";
  EXPECT_TRUE(ValidateBench(options).ok());
  EXPECT_FALSE(std::ifstream(*options.svg_out).is_open())
      << "nothing is left of the check";
  std::ofstream(*options.svg_out) << "older";
  EXPECT_TRUE(ValidateBench(options).ok());
  std::stringstream kept;
  kept << std::ifstream(*options.svg_out).rdbuf();
  EXPECT_EQ(kept.str(), "older");
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
  svg << std::ifstream(*options.svg_out).rdbuf();
  EXPECT_THAT(svg.str(), HasSubstr("<title>1000/s: "));
  EXPECT_THAT(err_.str(), HasSubstr("wrote " + *options.svg_out));
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
  options.clients.clear();
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
