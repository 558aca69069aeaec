#include "server/cli/random_prompt.h"

#include <random>

namespace baton {
namespace {

// Beside the names of blocks, which are small numbers.
constexpr uint64_t kWithoutBlocks = uint64_t{1} << 63;

}  // namespace

std::vector<uint32_t> RandomPrompt(const TimedRequest& request,
                                   uint32_t vocab_size, uint64_t seed,
                                   uint64_t index) {
  std::vector<uint32_t> ids;
  ids.reserve(request.shape.prompt_tokens);
  std::uniform_int_distribution<uint32_t> draw(kFirstPlainToken,
                                               vocab_size - 1);
  std::mt19937_64 random;
  for (uint32_t i = 0; i < request.shape.prompt_tokens; ++i) {
    const bool named = !request.blocks.empty();
    if (i == 0 || (named && i % request.block_tokens == 0)) {
      const uint64_t name = named ? request.blocks[i / request.block_tokens]
                                  : kWithoutBlocks | index;
      std::seed_seq of_both = {
          static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32),
          static_cast<uint32_t>(name), static_cast<uint32_t>(name >> 32)};
      random.seed(of_both);
    }
    ids.push_back(draw(random));
  }
  return ids;
}

}  // namespace baton
