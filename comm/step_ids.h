// Names of steps and of the groups that take them.
#ifndef BATON_COMM_STEP_IDS_H_
#define BATON_COMM_STEP_IDS_H_

#include <cstdint>

#include "base/strong_int.h"

namespace baton {

// Steps are numbered from 1; 0 is before the first.
BATON_DEFINE_STRONG_INT(StepId, uint64_t);
// A group of ranks, from its forming to its end.
BATON_DEFINE_STRONG_INT(EpochId, uint64_t);

}  // namespace baton

#endif  // BATON_COMM_STEP_IDS_H_
