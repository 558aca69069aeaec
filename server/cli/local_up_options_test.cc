#include "server/cli/local_up_options.h"

#include <gtest/gtest.h>

#include <string>

namespace baton {
namespace {

// Why these options are refused; empty: they are not.
std::string Refusal(LocalUpOptions options) {
  options.model = testing::TempDir();
  return std::string(ValidateLocalUp(options).message());
}

TEST(LocalUpOptionsTest, TakesEvenSharesOfRanks) {
  EXPECT_EQ(Refusal({}), "");
  EXPECT_EQ(Refusal({.decode_ep = 64, .decode_processes = 4}), "");
  EXPECT_EQ(Refusal({.unified = true, .unified_ep = 3, .unified_processes = 3}),
            "");
}

TEST(LocalUpOptionsTest, RefusesSharesThatAreNotEven) {
  EXPECT_EQ(Refusal({.decode_ep = 6, .decode_processes = 4}),
            "decode_processes: 4 does not divide --decode_ep=6");
  EXPECT_EQ(Refusal({.prefill_processes = 2}),
            "prefill_processes: 2 does not divide --prefill_ep=1");
  EXPECT_EQ(Refusal({.unified = true, .unified_processes = 2}),
            "unified_processes: 2 does not divide --unified_ep=1");
}

TEST(LocalUpOptionsTest, RefusesWhatIsOfPoolsThatAreNotStarted) {
  EXPECT_EQ(Refusal({.unified_processes = 2}),
            "unified_processes: is of --unified");
  EXPECT_EQ(Refusal({.unified_ep = 2}), "unified_ep: is of --unified");
  EXPECT_EQ(Refusal({.unified = true, .decode_processes = 2}),
            "decode_processes: contradicts --unified; say --unified_ep and "
            "--unified_processes");
  EXPECT_EQ(Refusal({.unified = true, .prefill_ep = 2}),
            "prefill_ep: contradicts --unified; say --unified_ep and "
            "--unified_processes");
  EXPECT_NE(Refusal({.decode = 1, .unified = true}), "");
}

TEST(LocalUpOptionsTest, RefusesAModelThatIsNoFolder) {
  EXPECT_EQ(ValidateLocalUp({.model = "/nowhere"}).message(),
            "model: \"/nowhere\" is no folder");
}

}  // namespace
}  // namespace baton
