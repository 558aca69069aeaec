#include "server/cli/request_flags.h"

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

TEST(RequestFlagsTest, AbsentFlagsStayAbsentInTheRequest) {
  v1::GenerateRequest request;
  ASSERT_TRUE(FillRequest({}, &request).ok());
  EXPECT_FALSE(request.sampling().has_temperature());
  EXPECT_FALSE(request.sampling().has_top_p());
  EXPECT_FALSE(request.sampling().has_top_k());
  EXPECT_FALSE(request.sampling().has_min_p());
  EXPECT_FALSE(request.sampling().has_seed());
  EXPECT_FALSE(request.stopping().has_max_tokens());
  EXPECT_FALSE(request.stopping().has_ignore_eos());
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
