// Tokens and log-probability bits as they were when kNumericsVersion was set:
// the same under every compiler, on every CPU, with every vector width.
#include <cstdint>

#include "gtest/gtest.h"
#include "tests/invariance/token_machine.h"

namespace baton {
namespace {

// Change these only together with kNumericsVersion.
constexpr uint64_t kDigestF32 = 16344175310937050989u;
constexpr uint64_t kDigestBf16 = 6118615524336662786u;

uint64_t DigestWith(VectorIsa isa, CacheDtype cache) {
  const MachineConfig config = {
      .max_running_requests = 8, .isa = isa, .cache = cache};
  return Digest(
      RunRequests("models/tiny-deepseek-v3", config, MixedRequests(16, 4096))
          .sequences);
}

TEST(DigestTest, TokensAndLogprobsAreTheCommittedOnes) {
  for (const VectorIsa isa : SupportedVectorIsas()) {
    EXPECT_EQ(DigestWith(isa, CacheDtype::kF32), kDigestF32)
        << VectorIsaName(isa);
    EXPECT_EQ(DigestWith(isa, CacheDtype::kBf16), kDigestBf16)
        << VectorIsaName(isa);
  }
}

}  // namespace
}  // namespace baton
