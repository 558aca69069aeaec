// Tokens and log-probability bits as they were when kNumericsVersion was set:
// the same under every compiler, on every CPU, with every vector width.
#include <array>
#include <cstdint>

#include "gtest/gtest.h"
#include "tests/invariance/token_machine.h"

namespace baton {
namespace {

// Change these only together with kNumericsVersion.
constexpr uint64_t kDigestF32 = 16344175310937050989u;
constexpr uint64_t kDigestBf16 = 6118615524336662786u;

// Of five drafts a step: how many were right, by place in the chain. The
// drafter's arithmetic shows in nothing else.
constexpr std::array<uint32_t, kMaxDraftTokens> kDraftsAccepted = {21, 8, 4, 2,
                                                                   2};

MachineResult RunSixteen(MachineConfig config) {
  config.max_running_requests = 8;
  return RunRequests("models/tiny-deepseek-v3", config,
                     MixedRequests(16, 4096));
}

uint64_t DigestWith(VectorIsa isa, CacheDtype cache) {
  return Digest(RunSixteen({.isa = isa, .cache = cache}).sequences);
}

TEST(DigestTest, TokensAndLogprobsAreTheCommittedOnes) {
  for (const VectorIsa isa : SupportedVectorIsas()) {
    EXPECT_EQ(DigestWith(isa, CacheDtype::kF32), kDigestF32)
        << VectorIsaName(isa);
    EXPECT_EQ(DigestWith(isa, CacheDtype::kBf16), kDigestBf16)
        << VectorIsaName(isa);
  }
}

TEST(DigestTest, SoAreTheyWithDraftsAndAsManyOfThoseAreRight) {
  for (const VectorIsa isa : SupportedVectorIsas()) {
    const MachineResult result =
        RunSixteen({.isa = isa, .num_draft_tokens = 5});
    EXPECT_EQ(Digest(result.sequences), kDigestF32) << VectorIsaName(isa);
    EXPECT_EQ(result.drafts_accepted, kDraftsAccepted) << VectorIsaName(isa);
  }
}

}  // namespace
}  // namespace baton
