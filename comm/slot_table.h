// Owner of one layer's ExpertSlots.
#ifndef BATON_COMM_SLOT_TABLE_H_
#define BATON_COMM_SLOT_TABLE_H_

#include <cstdint>
#include <vector>

#include "comm/expert_dispatch.h"

namespace baton {

// Immutable, so thread-safe.
class SlotTable final {
 public:
  // The expert in each slot. REQUIRES: each below num_experts has one or more.
  SlotTable(int num_experts, std::vector<uint32_t> experts);
  // Slot e holds expert e: the table of a group of one.
  static SlotTable Identity(int num_experts);

  // Valid while this lives where it is.
  ExpertSlots view() const { return {experts_, slots_, first_}; }

 private:
  std::vector<uint32_t> experts_;
  std::vector<uint32_t> slots_;
  std::vector<uint32_t> first_;
};

}  // namespace baton

#endif  // BATON_COMM_SLOT_TABLE_H_
