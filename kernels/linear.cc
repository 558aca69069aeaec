#include "kernels/linear.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/logging.h"
#include "kernels/cpu/bf16_dots.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/parallel_for.h"

namespace baton {
namespace {

constexpr int kPanelOutputs = PackedWeight::kPanelOutputs;

constexpr size_t kLineBytes = 64;
constexpr size_t kHugePageBytes = size_t{2} << 20;

constexpr size_t RoundUp(size_t bytes, size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

// One item of work: so many panels times so many rows of a task.
constexpr int kItemPanels = 8;
constexpr int kItemRows = 48;
// Tasks of a batch that share one fork and join.
constexpr int kMaxTasksAtOnce = 256;

int NumPanels(const PackedWeight& weight) {
  return CeilDivide(weight.out(), kPanelOutputs);
}

size_t PanelBytes(int num_inputs, WeightDtype dtype) {
  const auto in = static_cast<size_t>(num_inputs);
  return dtype == WeightDtype::kF32
             ? in * kPanelOutputs * sizeof(float)
             : (in + 1) / 2 * 2 * kPanelOutputs * sizeof(uint16_t);
}

size_t PanelBytes(const PackedWeight& weight) {
  return PanelBytes(weight.in(), weight.dtype());
}

char* MapZeros(size_t bytes) {
  void* const mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return mapped == MAP_FAILED ? nullptr : static_cast<char*>(mapped);
}

size_t BytesToHugePage(const char* p) {
  return -reinterpret_cast<uintptr_t>(p) % kHugePageBytes;
}

// Zeros, at the start of a huge page; null if there is no memory. Mappings
// mostly follow each other: so all but the first are aligned, and the system
// counts them as one.
char* MapHugePages(size_t bytes) {
  char* start = MapZeros(bytes);
  if (start == nullptr) return nullptr;
  if (BytesToHugePage(start) > 0) {
    munmap(start, bytes);
    start = MapZeros(bytes + kHugePageBytes);
    if (start == nullptr) return nullptr;
    const size_t before = BytesToHugePage(start);
    if (before > 0) munmap(start, before);
    start += before;
    munmap(start + bytes, kHugePageBytes - before);
  }
  // Only advice: without huge pages the weight is as good, but slower.
  madvise(start, bytes, MADV_HUGEPAGE);
  return start;
}

void CheckTask(const LinearTask& task) {
  CHECK(task.weight != nullptr);
  CHECK_EQ(task.x.cols, task.weight->in()) << "linear";
  CHECK_EQ(task.y.cols, task.weight->out()) << "linear";
  CHECK_EQ(task.x.rows, task.y.rows) << "linear";
}

int NumPanelGroups(const LinearTask& task) {
  return CeilDivide(NumPanels(*task.weight), kItemPanels);
}

int NumItems(const LinearTask& task) {
  return NumPanelGroups(task) * CeilDivide(task.x.rows, kItemRows);
}

const char* GroupPanels(const LinearTask& task, int group) {
  return static_cast<const char*>(task.weight->panels()) +
         static_cast<size_t>(group) * kItemPanels * PanelBytes(*task.weight);
}

LinearArithmetic ArithmeticOf(const CpuContext& context,
                              const PackedWeight& weight) {
  if (context.bf16_dots == Bf16Dots::kOff ||
      weight.dtype() != WeightDtype::kBf16) {
    return LinearArithmetic::kFma;
  }
  return context.bf16_dots == Bf16Dots::kOn && HasNativeBf16Dots(context.isa)
             ? LinearArithmetic::kNativeBf16Dots
             : LinearArithmetic::kBf16Dots;
}

// Row blocks follow each other, and in each the groups of panels. `next` is the
// task of the item after this.
void RunItem(const CpuContext& context, const LinearTask& task, int item,
             const LinearTask& next) {
  const PackedWeight& weight = *task.weight;
  const int num_groups = NumPanelGroups(task);
  const int group = item % num_groups;
  const int row = item / num_groups * kItemRows;
  const int output = group * kItemPanels * kPanelOutputs;
  const int next_group = &next == &task ? (group + 1) % num_groups : 0;
  const int rows = std::min(kItemRows, task.x.rows - row);
  const LinearArithmetic arithmetic = ArithmeticOf(context, weight);
  // Kept from call to call, so that steady state allocates nothing.
  thread_local std::vector<float> rounded;
  const size_t needed =
      static_cast<size_t>(rows) * static_cast<size_t>(weight.in() + 1);
  if (arithmetic != LinearArithmetic::kFma && rounded.size() < needed) {
    rounded.resize(needed);
  }
  KernelsFor(context.isa)
      .linear({
          .x = task.x.row(row),
          .x_stride = task.x.stride,
          .panels = GroupPanels(task, group),
          .next_panels = GroupPanels(next, next_group),
          .is_bf16 = weight.dtype() == WeightDtype::kBf16,
          .arithmetic = arithmetic,
          .rounded = rounded.data(),
          .rows = rows,
          .in = weight.in(),
          .out = std::min(kItemPanels * kPanelOutputs, weight.out() - output),
          .y = task.y.row(row) + output,
          .y_stride = task.y.stride,
      });
}

void RunTasks(const CpuContext& context, std::span<const LinearTask> tasks) {
  // Task i has the items [first[i], first[i + 1]).
  std::array<int, kMaxTasksAtOnce + 1> first;
  first[0] = 0;
  for (size_t i = 0; i < tasks.size(); ++i) {
    CheckTask(tasks[i]);
    first[i + 1] = first[i] + NumItems(tasks[i]);
  }
  ParallelFor(context, first[tasks.size()], [&](int item) {
    const auto end = first.begin() + static_cast<ptrdiff_t>(tasks.size()) + 1;
    const size_t i = static_cast<size_t>(
        std::upper_bound(first.begin(), end, item) - first.begin() - 1);
    const bool ends_task = item + 1 == first[i + 1];
    const size_t next = ends_task && i + 1 < tasks.size() ? i + 1 : i;
    RunItem(context, tasks[i], item - first[i], tasks[next]);
  });
}

}  // namespace

PackedWeight::PackedWeight(int out, int in, WeightDtype dtype)
    : out_(out), in_(in), dtype_(dtype) {
  CHECK_GE(out, 0);
  CHECK_GE(in, 0);
  size_bytes_ = SizeBytes(out, in, dtype);
  // A large one gets huge pages: rows are streamed, and page walks show.
  if (size_bytes_ >= kHugePageBytes) {
    const size_t bytes = RoundUp(size_bytes_, kHugePageBytes);
    panels_ = {MapHugePages(bytes), Free{bytes}};
  } else {
    const size_t bytes = RoundUp(std::max(size_bytes_, size_t{1}), kLineBytes);
    panels_ = {std::aligned_alloc(kLineBytes, bytes), Free{0}};
    if (panels_ != nullptr) std::memset(panels_.get(), 0, size_bytes_);
  }
  CHECK(panels_ != nullptr) << "packed weight of " << size_bytes_ << " bytes";
}

void PackedWeight::Free::operator()(void* p) const {
  if (mapped_bytes > 0) {
    munmap(p, mapped_bytes);
  } else {
    std::free(p);
  }
}

size_t PackedWeight::SizeBytes(int out, int in, WeightDtype dtype) {
  return static_cast<size_t>(CeilDivide(out, kPanelOutputs)) *
         PanelBytes(in, dtype);
}

PackedWeight PackedWeight::FromF32(const float* weight, int out, int in,
                                   ptrdiff_t stride) {
  PackedWeight packed(out, in, WeightDtype::kF32);
  float* panels = static_cast<float*>(packed.panels_.get());
  for (int o = 0; o < out; ++o) {
    const float* row = weight + o * stride;
    float* to = panels + ptrdiff_t{o / kPanelOutputs} * in * kPanelOutputs +
                o % kPanelOutputs;
    for (int k = 0; k < in; ++k) to[ptrdiff_t{k} * kPanelOutputs] = row[k];
  }
  return packed;
}

PackedWeight PackedWeight::FromBf16(const uint16_t* weight, int out, int in,
                                    ptrdiff_t stride) {
  PackedWeight packed(out, in, WeightDtype::kBf16);
  uint16_t* panels = static_cast<uint16_t*>(packed.panels_.get());
  const ptrdiff_t panel_size = ptrdiff_t{(in + 1) / 2} * 2 * kPanelOutputs;
  for (int o = 0; o < out; ++o) {
    const uint16_t* row = weight + o * stride;
    uint16_t* to =
        panels + o / kPanelOutputs * panel_size + o % kPanelOutputs * 2;
    for (int k = 0; k < in; ++k) {
      to[ptrdiff_t{k / 2} * 2 * kPanelOutputs + k % 2] = row[k];
    }
  }
  return packed;
}

void Linear(const CpuContext& context, const LinearTask& task) {
  RunTasks(context, {&task, 1});
}

void LinearBatch(const CpuContext& context, std::span<const LinearTask> tasks) {
  while (!tasks.empty()) {
    const size_t count = std::min<size_t>(tasks.size(), kMaxTasksAtOnce);
    RunTasks(context, tasks.first(count));
    tasks = tasks.subspan(count);
  }
}

}  // namespace baton
