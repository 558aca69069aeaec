// The commands, end to end, against a router played by this test.
#include <memory>
#include <string>
#include <vector>

#include "base/field_error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "server/cli/chat.h"
#include "server/cli/fake_router_for_test.h"
#include "server/cli/generate.h"
#include "server/cli/health.h"

namespace baton {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using CommandsTest = FakeRouterTest;

TEST_F(CommandsTest, GenerateStreamsTheTextAndSumsUp) {
  GenerateOptions options;
  options.request.router = served_.endpoint;
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
  options.request.router = served_.endpoint;
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
  options.request.router = served_.endpoint;
  EXPECT_EQ(RunGenerate(options, console()), kExitOk);
  EXPECT_EQ(router_.requests().at(0).prompt().text().text(),
            "From a pipe\nof two lines");
}

TEST_F(CommandsTest, GenerateTakesIdsAndAnswersInJson) {
  GenerateOptions options;
  options.request.router = served_.endpoint;
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
  EXPECT_EQ(json["usage"]["cached_tokens"], 4);
  EXPECT_EQ(json["usage"]["decode_cached_tokens"], 3);
  EXPECT_EQ(json["kv_transfer_bytes"], 4096);
}

TEST_F(CommandsTest, GeneratePrintsEachSampleWhenItIsWhole) {
  GenerateOptions options;
  options.request.router = served_.endpoint;
  options.request.n = 3;
  options.prompt = "Once";
  EXPECT_EQ(RunGenerate(options, console()), kExitOk);
  EXPECT_EQ(out_.str(),
            "--- sample 2\ncde\n--- sample 1\nbcd\n--- sample 0\nabc\n");
  EXPECT_THAT(err_.str(),
              HasSubstr("finish 3 LENGTH  prompt 5 "
                        "tokens (4 cached, 3 at decode)  output 9 tokens"));
  EXPECT_EQ(router_.requests().at(0).sampling().n(), 3u);
}

TEST_F(CommandsTest, GeneratePrintsALineOfJsonForEachSample) {
  GenerateOptions options;
  options.request.router = served_.endpoint;
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
    options.request.router = served_.endpoint;
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
  options.request.router = served_.endpoint;
  options.prompt = "fail";
  EXPECT_EQ(RunGenerate(options, console()), kExitFailed);
  EXPECT_THAT(err_.str(), HasSubstr("RESOURCE_EXHAUSTED: the queue is full; "
                                    "try again later"));
}

TEST_F(CommandsTest, NoRouterExitsOneAndNamesTheEndpoint) {
  served_.server->Shutdown();
  GenerateOptions options;
  options.request.router = served_.endpoint;
  options.prompt = "Once";
  EXPECT_EQ(RunGenerate(options, console()), kExitFailed);
  EXPECT_THAT(err_.str(), HasSubstr(served_.endpoint));
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
  options.request.router = served_.endpoint;
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
  options.endpoints = served_.endpoint;
  EXPECT_EQ(RunHealth(options, console()), kExitOk);
  EXPECT_EQ(out_.str(), served_.endpoint + " SERVING\n");
  SetReadiness(served_.server.get(), false);
  EXPECT_EQ(RunHealth(options, console()), kExitFailed);
  EXPECT_THAT(out_.str(), HasSubstr("NOT_SERVING"));
  served_.server->Shutdown();
  EXPECT_EQ(RunHealth(options, console()), kExitFailed);
  options.endpoints = ",";
  EXPECT_EQ(RunHealth(options, console()), kExitUsage);
}

}  // namespace
}  // namespace baton
