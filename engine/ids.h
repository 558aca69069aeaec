// The engine's ids.
#ifndef BATON_ENGINE_IDS_H_
#define BATON_ENGINE_IDS_H_

#include <cstdint>

#include "base/strong_int.h"

namespace baton {

// One sample of one request, in order of arrival; never reused by an engine.
BATON_DEFINE_STRONG_INT(SequenceId, uint64_t);
// Steps are numbered from 1; 0 is before the first.
BATON_DEFINE_STRONG_INT(StepId, uint64_t);
// A group of ranks, from its forming to its end.
BATON_DEFINE_STRONG_INT(EpochId, uint64_t);

}  // namespace baton

#endif  // BATON_ENGINE_IDS_H_
