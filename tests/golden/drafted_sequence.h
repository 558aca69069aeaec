// A sequence that runs through the main model and the drafter, without an
// engine.
#ifndef BATON_TESTS_GOLDEN_DRAFTED_SEQUENCE_H_
#define BATON_TESTS_GOLDEN_DRAFTED_SEQUENCE_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/model/testing/model_driver.h"

namespace baton {

class DraftedSequence {
 public:
  using Logits = ModelDriver::Logits;

  static constexpr int kMaxTokens = 256;  // Of one Add.

  // The folder's model and its drafter, in float32. Dies on an error.
  static std::unique_ptr<ModelDriver> Load(const std::string& folder);

  // Borrows a driver from Load.
  explicit DraftedSequence(ModelDriver* driver)
      : driver_(driver), sequence_(driver->NewSequence()) {}

  // The next tokens; the drafter's logits behind each but the sequence's first,
  // and in `target`, unless null, the main model's behind each.
  std::vector<Logits> Add(std::span<const uint32_t> tokens,
                          std::vector<Logits>* target = nullptr);

  // `draft` in the slot `ahead` behind the last token.
  Logits Chain(uint32_t draft, int ahead);

 private:
  ModelDriver::Output DraftRows(const ModelDriver::Piece& piece,
                                std::span<const float> hidden);

  ModelDriver* const driver_;
  const int sequence_;
  int num_tokens_ = 0;
  std::vector<float> last_hidden_;   // The main model's.
  std::vector<float> chain_hidden_;  // The drafter's last row's.
};

}  // namespace baton

#endif  // BATON_TESTS_GOLDEN_DRAFTED_SEQUENCE_H_
