// The engine's ids.
#ifndef BATON_ENGINE_IDS_H_
#define BATON_ENGINE_IDS_H_

#include <cstdint>

#include "base/strong_int.h"
#include "comm/step_ids.h"  // IWYU pragma: export

namespace baton {

// One sample of one request, in order of arrival; never reused by an engine.
BATON_DEFINE_STRONG_INT(SequenceId, uint64_t);

}  // namespace baton

#endif  // BATON_ENGINE_IDS_H_
