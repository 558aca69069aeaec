// The only door into the engine: what other threads ask of it.
#ifndef BATON_ENGINE_INBOX_H_
#define BATON_ENGINE_INBOX_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "base/mpsc_queue.h"
#include "comm/kv_transfer.h"
#include "engine/generation_request.h"
#include "engine/sequence.h"

namespace baton {

struct SubmitCommand {
  std::vector<std::unique_ptr<SequenceMetadata>> samples;
};

struct AbortCommand {
  RequestId id;
  std::optional<uint32_t> sample_index;  // Absent: all samples.
  UnwantedSince since;
};

// Samples [first_sample, first_sample + num_samples).
struct PauseCommand {
  RequestId id;
  uint32_t first_sample = 0;
  uint32_t num_samples = 1;
  bool paused = false;
};

// The youngest of those that were never admitted end with this status.
struct ShedCommand {
  uint32_t count = 0;
  absl::Status status;
};

using EngineCommand = std::variant<SubmitCommand, AbortCommand, PauseCommand,
                                   ShedCommand, KvTransferEvent>;

// Bounded by its producers: submits by max_waiting_requests, transfer events by
// the transfers that the engine started, aborts by one a call of a client,
// pauses by one each time that a stream's reader falls behind or catches up,
// and sheds by a slow timer.
using Inbox = MpscQueue<EngineCommand>;

}  // namespace baton

#endif  // BATON_ENGINE_INBOX_H_
