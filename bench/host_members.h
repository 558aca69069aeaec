// Threads, or processes, of this host that measure something together.
#ifndef BATON_BENCH_HOST_MEMBERS_H_
#define BATON_BENCH_HOST_MEMBERS_H_

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

namespace baton {

enum class MemberKind { kThread, kProcess };

void* MapShared(size_t bytes);
void UnmapShared(void* memory, size_t bytes);

// What members write and the parent reads, whether or not they share its
// memory; zeroed.
template <typename T>
class SharedArray {
 public:
  explicit SharedArray(size_t size)
      : values_(static_cast<T*>(MapShared(size * sizeof(T))), size) {}
  ~SharedArray() { UnmapShared(values_.data(), values_.size_bytes()); }
  SharedArray(const SharedArray&) = delete;
  SharedArray& operator=(const SharedArray&) = delete;

  std::span<T> values() const { return values_; }

 private:
  const std::span<T> values_;
};

// Calls body(0) .. body(num - 1), each on a thread or in a process of its own,
// and waits for all. Dies if one does.
// REQUIRES, of processes: this one has no other thread.
void RunMembers(MemberKind kind, int num, const std::function<void(int)>& body);

}  // namespace baton

#endif  // BATON_BENCH_HOST_MEMBERS_H_
