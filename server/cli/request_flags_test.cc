#include "server/cli/request_flags.h"

#include <map>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(RequestFlagsTest, ReadsIdsBetweenCommasAndSpaces) {
  const auto ids = ParseTokenIds(" 0,17 42\n,4294967295,");
  ASSERT_TRUE(ids.ok()) << ids.status();
  EXPECT_THAT(*ids, ElementsAre(0u, 17u, 42u, 4294967295u));
  EXPECT_THAT(*ParseTokenIds(""), IsEmpty());
}

TEST(RequestFlagsTest, NamesWhatIsNoId) {
  for (const std::string text : {"-1", "1,x", "4294967296", "1.5"}) {
    const auto ids = ParseTokenIds(text);
    ASSERT_FALSE(ids.ok()) << text;
    EXPECT_THAT(std::string(ids.status().message()),
                HasSubstr("is no token id"));
  }
}

TEST(RequestFlagsTest, NamesWhatIsNoBias) {
  EXPECT_EQ(ParseLogitBias("17:-2.5")->token_id(), 17u);
  EXPECT_EQ(ParseLogitBias("17:-2.5")->bias(), -2.5f);
  for (const std::string text : {"", "17", ":1", "17:", "-1:1", "x:1", "17:x",
                                 "4294967296:1", "1:2:3"}) {
    const auto bias = ParseLogitBias(text);
    ASSERT_FALSE(bias.ok()) << text;
    EXPECT_THAT(std::string(bias.status().message()), HasSubstr("is no bias"));
    v1::GenerateRequest request;
    RequestOptions options;
    options.logit_bias = {text};
    EXPECT_FALSE(FillRequest(options, &request).ok());
  }
}

TEST(RequestFlagsTest, WhatWasAskedOfPenaltiesAndOutputIsInTheRequest) {
  RequestOptions options;
  options.repetition_penalty = 1.5f;
  options.presence_penalty = -1.0f;
  options.frequency_penalty = 0.0f;
  options.logit_bias = {"3:1", "4:-100"};
  options.min_tokens = 0;
  options.include_stop_string = true;
  options.skip_special_tokens = false;
  options.stream_interval = 8;
  options.top_logprobs = 5;
  options.logprobs_after_truncation = true;
  options.prompt_logprobs_from = 0;
  options.cache_salt = "a tenant";
  options.cache_bypass = true;
  v1::GenerateRequest request;
  ASSERT_TRUE(FillRequest(options, &request).ok());
  EXPECT_EQ(request.sampling().repetition_penalty(), 1.5f);
  EXPECT_EQ(request.sampling().presence_penalty(), -1);
  EXPECT_TRUE(request.sampling().has_frequency_penalty());
  ASSERT_EQ(request.sampling().logit_bias_size(), 2);
  EXPECT_EQ(request.sampling().logit_bias(1).bias(), -100);
  EXPECT_TRUE(request.stopping().has_min_tokens());
  EXPECT_TRUE(request.stopping().include_stop_string());
  EXPECT_TRUE(request.output().has_skip_special_tokens());
  EXPECT_FALSE(request.output().skip_special_tokens());
  EXPECT_EQ(request.output().stream_interval(), 8u);
  EXPECT_EQ(request.logprobs().top(), 5u);
  EXPECT_TRUE(request.logprobs().after_truncation());
  EXPECT_TRUE(request.logprobs().has_prompt_from());
  EXPECT_EQ(request.cache().salt(), "a tenant");
  EXPECT_TRUE(request.cache().bypass());
}

// Whatever the server may refuse, the message names a flag that there is.
TEST(RequestFlagsTest, FieldsOfARequestHaveTheirFlags) {
  for (const auto& [field, flag] : std::map<std::string, std::string>{
           {"sampling.top_p", "top_p=1"},
           {"sampling.logit_bias[3]", "logit_bias=1:1"},
           {"stopping.max_tokens", "max_tokens=1"},
           {"stopping.stop_strings[0]", "stop=x"},
           {"stopping.stop_token_ids[0]", "stop_token_ids=1"},
           {"logprobs.top", "top_logprobs=1"},
           {"logprobs.prompt_from", "prompt_logprobs_from=1"},
           {"output.stream_interval", "stream_interval=1"},
           {"cache.salt", "cache_salt=x"},
           {"cache.bypass", "cache_bypass=true"},
           {"sampling.n", "n=2"}}) {
    EXPECT_EQ(FlagOfField(field), "--" + flag.substr(0, flag.find('=')));
    RequestOptions options;
    Flags flags("test", "");
    AddRequestFlags(flags, &options);
    AddSamplesFlag(flags, &options.n);
    const std::vector<std::string> arguments = {"--" + flag};
    EXPECT_TRUE(flags.Parse(arguments, nullptr, nullptr).run) << flag;
  }
  EXPECT_EQ(FlagOfField("prompt.token_ids.ids[7]"), "--token_ids");
  for (const char* field :
       {"prompt", "prompt.chat.messages[0].role", "client_request_id"}) {
    EXPECT_EQ(FlagOfField(field), std::nullopt) << field;
  }
}

TEST(RequestFlagsTest, ARouterWithoutAPortIsRefused) {
  for (const char* good : {"127.0.0.1:1", "[::1]:1", "unix:/a/socket"}) {
    EXPECT_TRUE(ValidateConnection(good).ok()) << good;
  }
  for (const char* bad : {"localhost", "localhost:", ""}) {
    const absl::Status status = ValidateConnection(bad);
    ASSERT_FALSE(status.ok()) << bad;
    EXPECT_THAT(std::string(status.message()), HasSubstr("has no port")) << bad;
  }
}

TEST(RequestFlagsTest, AbsentFlagsStayAbsentInTheRequest) {
  v1::GenerateRequest request;
  ASSERT_TRUE(FillRequest({}, &request).ok());
  EXPECT_FALSE(request.sampling().has_temperature());
  EXPECT_FALSE(request.sampling().has_top_p());
  EXPECT_FALSE(request.sampling().has_top_k());
  EXPECT_FALSE(request.sampling().has_min_p());
  EXPECT_FALSE(request.sampling().has_seed());
  EXPECT_FALSE(request.sampling().has_n());
  EXPECT_FALSE(request.stopping().has_max_tokens());
  EXPECT_FALSE(request.stopping().has_ignore_eos());
  EXPECT_FALSE(request.stopping().has_min_tokens());
  EXPECT_FALSE(request.sampling().has_repetition_penalty());
  EXPECT_FALSE(request.output().has_skip_special_tokens());
  EXPECT_FALSE(request.output().has_stream_interval());
  EXPECT_FALSE(request.logprobs().has_prompt_from());
}

TEST(RequestFlagsTest, AZeroThatWasGivenIsInTheRequest) {
  RequestOptions options;
  options.temperature = 0;
  options.top_k = 0;
  options.seed = 0;
  options.stop = {"a", "b"};
  options.stop_token_ids = {"3", "4"};
  options.ignore_eos = true;
  v1::GenerateRequest request;
  ASSERT_TRUE(FillRequest(options, &request).ok());
  EXPECT_TRUE(request.sampling().has_temperature());
  EXPECT_TRUE(request.sampling().has_top_k());
  EXPECT_TRUE(request.sampling().has_seed());
  EXPECT_THAT(request.stopping().stop_strings(), ElementsAre("a", "b"));
  EXPECT_THAT(request.stopping().stop_token_ids(), ElementsAre(3u, 4u));
  EXPECT_TRUE(request.stopping().ignore_eos());
}

}  // namespace
}  // namespace baton
