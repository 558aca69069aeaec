// A queue of work that the device does in order.
#ifndef BATON_ENGINE_DEVICE_STREAM_H_
#define BATON_ENGINE_DEVICE_STREAM_H_

#include <cstdint>

#include "base/strong_int.h"

namespace baton {

// A mark in the queue. It has fired once all work enqueued before it is done.
BATON_DEFINE_STRONG_INT(DeviceEvent, uint64_t);

// A plain call, so that enqueuing never allocates. `argument` outlives the
// call.
struct DeviceTask {
  void (*run)(void* argument) = nullptr;
  void* argument = nullptr;
};

// Enqueue, RecordEvent and HasFired: the engine thread. Poll: the device
// thread, which may be the same.
class DeviceStream {
 public:
  virtual ~DeviceStream() = default;
  virtual void Enqueue(DeviceTask task) = 0;
  virtual DeviceEvent RecordEvent() = 0;
  virtual bool HasFired(DeviceEvent event) const = 0;
  // Does some queued work, if work is done by polling; true if it did any.
  virtual bool Poll() = 0;
};

}  // namespace baton

#endif  // BATON_ENGINE_DEVICE_STREAM_H_
