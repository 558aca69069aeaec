#include <cstdint>
#include <cstdio>

#include "kernels/cuda/stand_in_kernels.h"

namespace baton {
namespace {

constexpr uint32_t kMaxThreads = 1024;
// Blocks of the forward pass: one on each multiprocessor of an H200.
constexpr uint32_t kForwardBlocks = 132;
constexpr uint32_t kForwardThreads = 64;

__device__ uint64_t GlobalTimer() {
  uint64_t now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}

__device__ void StoreRelease(uint64_t* to, uint64_t value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(to), "l"(value)
               : "memory");
}

// Says what is wrong, and ends the process's use of the GPU.
__device__ void CheckInput(const StandInStep& step) {
  const uint64_t number = *step.steps_done + 1;
  const uint64_t seen = InputOf(step).header->step;
  if (seen == number) return;
  printf("device %u step %llu: has the input of step %llu\n",
         step.options.device, static_cast<unsigned long long>(number),
         static_cast<unsigned long long>(seen));
  __trap();
}

// One block.
__global__ void StartStep(StandInStep step) {
  __shared__ uint32_t num_rows;
  if (threadIdx.x == 0) {
    *step.start = GlobalTimer();
    num_rows = 0;
    CheckInput(step);
  }
  __syncthreads();
  const CudaStepInput input = InputOf(step);
  for (uint32_t i = threadIdx.x; i < input.header->num_sequences;
       i += blockDim.x) {
    const CudaRows& rows = input.rows[i];
    const CudaCorrected corrected = CorrectLength(rows, step.slots[rows.slot]);
    step.corrected[i] = corrected;
    atomicAdd(&num_rows, corrected.num_rows);
  }
  __syncthreads();
  if (threadIdx.x == 0) *step.num_rows = num_rows;
}

__global__ void Forward(StandInStep step) {
  const uint32_t num_sequences = InputOf(step).header->num_sequences;
  for (uint32_t i = blockIdx.x + gridDim.x * threadIdx.x; i < num_sequences;
       i += gridDim.x * blockDim.x) {
    RunRows(step, i);
  }
  __syncthreads();
  const uint64_t end = *step.start + step.options.model.step_nanoseconds;
  while (threadIdx.x == 0 && GlobalTimer() < end) {
  }
}

// One block.
__global__ void SampleStep(StandInStep step) {
  const uint32_t num_sequences = InputOf(step).header->num_sequences;
  for (uint32_t i = threadIdx.x; i < num_sequences; i += blockDim.x) {
    SampleSequence(step, i);
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  CudaReportHeader* report = ReportOf(step).header;
  report->start = *step.start;
  report->num_rows = *step.num_rows;
  const uint64_t number = ++*step.steps_done;
  report->end = GlobalTimer();
  // The barrier has put the other threads' writes before this one.
  StoreRelease(&report->step, number);
}

}  // namespace

cudaError_t LaunchStandInStep(const StandInStep& step, uint32_t bucket,
                              cudaStream_t stream) {
  const uint32_t threads = bucket < kMaxThreads ? bucket : kMaxThreads;
  StartStep<<<1, threads, 0, stream>>>(step);
  Forward<<<kForwardBlocks, kForwardThreads, 0, stream>>>(step);
  SampleStep<<<1, threads, 0, stream>>>(step);
  return cudaGetLastError();
}

}  // namespace baton
