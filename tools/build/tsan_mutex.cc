// Debian's Abseil is not instrumented, so ThreadSanitizer would see no order
// between two holders of an absl::Mutex and call every guarded member a race.
// Under it, these definitions stand before the library's, call them, and tell
// it what they do. In other builds this file is empty.
#include "base/sanitizers.h"

#ifdef BATON_TSAN
#include <dlfcn.h>
#include <sanitizer/tsan_interface.h>

#include "absl/synchronization/mutex.h"

extern "C" void AnnotateIgnoreReadsBegin(const char* file, int line);
extern "C" void AnnotateIgnoreReadsEnd(const char* file, int line);

namespace absl {
ABSL_NAMESPACE_BEGIN
namespace {

// The library's function of that name.
template <typename Function>
Function* Real(const char* mangled) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, mangled));
}

// Whoever unlocks, or waits, evaluates conditions inside the library: under the
// lock, but after we said that it was given up.
class LibraryCall {
 public:
  LibraryCall() { AnnotateIgnoreReadsBegin(__FILE__, __LINE__); }
  ~LibraryCall() { AnnotateIgnoreReadsEnd(__FILE__, __LINE__); }
};

}  // namespace

#define BATON_REAL(mangled, ...)                                           \
  static auto* const real = Real<__VA_ARGS__>("_ZN4absl7debian3" mangled); \
  const LibraryCall call

void Mutex::Lock() {
  {
    BATON_REAL("5Mutex4LockEv", void(Mutex*));
    real(this);
  }
  __tsan_acquire(this);
}

bool Mutex::TryLock() {
  BATON_REAL("5Mutex7TryLockEv", bool(Mutex*));
  if (!real(this)) return false;
  __tsan_acquire(this);
  return true;
}

void Mutex::Unlock() {
  __tsan_release(this);
  BATON_REAL("5Mutex6UnlockEv", void(Mutex*));
  real(this);
}

void Mutex::ReaderLock() {
  {
    BATON_REAL("5Mutex10ReaderLockEv", void(Mutex*));
    real(this);
  }
  __tsan_acquire(this);
}

void Mutex::ReaderUnlock() {
  __tsan_release(this);
  BATON_REAL("5Mutex12ReaderUnlockEv", void(Mutex*));
  real(this);
}

void Mutex::LockWhen(const Condition& condition) {
  {
    BATON_REAL("5Mutex8LockWhenERKNS0_9ConditionE",
               void(Mutex*, const Condition&));
    real(this, condition);
  }
  __tsan_acquire(this);
}

void Mutex::Await(const Condition& condition) {
  __tsan_release(this);
  {
    BATON_REAL("5Mutex5AwaitERKNS0_9ConditionE",
               void(Mutex*, const Condition&));
    real(this, condition);
  }
  __tsan_acquire(this);
}

bool Mutex::AwaitWithTimeout(const Condition& condition, Duration timeout) {
  __tsan_release(this);
  BATON_REAL("5Mutex16AwaitWithTimeoutERKNS0_9ConditionENS0_8DurationE",
             bool(Mutex*, const Condition&, Duration));
  const bool met = real(this, condition, timeout);
  __tsan_acquire(this);
  return met;
}

bool Mutex::AwaitWithDeadline(const Condition& condition, Time deadline) {
  __tsan_release(this);
  BATON_REAL("5Mutex17AwaitWithDeadlineERKNS0_9ConditionENS0_4TimeE",
             bool(Mutex*, const Condition&, Time));
  const bool met = real(this, condition, deadline);
  __tsan_acquire(this);
  return met;
}

void CondVar::Wait(Mutex* mutex) {
  __tsan_release(mutex);
  {
    BATON_REAL("7CondVar4WaitEPNS0_5MutexE", void(CondVar*, Mutex*));
    real(this, mutex);
  }
  __tsan_acquire(mutex);
}

bool CondVar::WaitWithTimeout(Mutex* mutex, Duration timeout) {
  __tsan_release(mutex);
  BATON_REAL("7CondVar15WaitWithTimeoutEPNS0_5MutexENS0_8DurationE",
             bool(CondVar*, Mutex*, Duration));
  const bool timed_out = real(this, mutex, timeout);
  __tsan_acquire(mutex);
  return timed_out;
}

#undef BATON_REAL

ABSL_NAMESPACE_END
}  // namespace absl
#endif  // BATON_TSAN
