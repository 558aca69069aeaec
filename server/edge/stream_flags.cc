#include "server/edge/stream_flags.h"

namespace baton {

StreamLimits StreamFlags::limits() const {
  StreamLimits limits;
  limits.slow_reader_timeout = slow_reader_timeout;
  limits.max_bytes = max_stream_bytes.bytes;
  return limits;
}

void AddStreamFlags(Flags* flags, StreamFlags* streams) {
  flags->Group("Streams");
  flags->Add(&streams->slow_reader_timeout,
             {.name = "slow_reader_timeout",
              .help = "How long the reader of a stream may take no message "
                      "before the stream is cut. Its request stands still "
                      "meanwhile.",
              .min = 0.1,
              .max = 86400});
  flags->Add(&streams->max_stream_bytes,
             {.name = "max_stream_bytes",
              .help = "Bytes of answers that may wait for slow readers, of all "
                      "streams together; beyond it the slowest are cut.",
              .min = 1 << 20,
              .max = 1e12});
}

}  // namespace baton
