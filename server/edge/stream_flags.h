// The flags of what streams may keep for slow readers.
#ifndef BATON_SERVER_EDGE_STREAM_FLAGS_H_
#define BATON_SERVER_EDGE_STREAM_FLAGS_H_

#include "absl/time/time.h"
#include "server/edge/config.h"
#include "server/edge/flag_value.h"
#include "server/edge/stream_budget.h"

namespace baton {

struct StreamFlags {
  absl::Duration slow_reader_timeout = StreamLimits().slow_reader_timeout;
  ByteSize max_stream_bytes = {StreamLimits().max_bytes};

  StreamLimits limits() const;
};

// --slow_reader_timeout and --max_stream_bytes, under "Streams". The defaults
// are what `streams` holds.
void AddStreamFlags(Flags* flags, StreamFlags* streams);

}  // namespace baton

#endif  // BATON_SERVER_EDGE_STREAM_FLAGS_H_
