// Placements as odd as a planner may make them.
#ifndef BATON_COMM_TESTING_RANDOM_SLOT_TABLE_H_
#define BATON_COMM_TESTING_RANDOM_SLOT_TABLE_H_

#include <random>

#include "comm/slot_table.h"

namespace baton {

// Each expert on some rank, replicas in the slots left over, no expert twice on
// a rank. REQUIRES: slots_per_rank <= num_experts <= all slots.
SlotTable RandomSlotTable(int num_experts, int num_ranks, int slots_per_rank,
                          std::mt19937* random);

}  // namespace baton

#endif  // BATON_COMM_TESTING_RANDOM_SLOT_TABLE_H_
