// The boundary between the server and its CUDA half, libbaton_cuda.so, which is
// opened at run time: one server binary for machines with and without GPUs.
// Plain data and C functions alone.
#ifndef BATON_KERNELS_CUDA_CUDA_API_H_
#define BATON_KERNELS_CUDA_CUDA_API_H_

#include <cstddef>
#include <cstdint>

#ifdef __CUDACC__
#define BATON_HOST_DEVICE __host__ __device__
#else
#define BATON_HOST_DEVICE
#endif

namespace baton {

inline constexpr uint32_t kCudaApiVersion = 1;
inline constexpr char kCudaApiSymbol[] = "BatonCudaApi";
inline constexpr uint32_t kMaxCudaRing = 3;
inline constexpr uint32_t kMaxCudaDrafts = 5;

// One sequence's rows: StepRows of engine/step_io.h, on the wire.
struct CudaRows {
  uint32_t slot;
  uint32_t from_device;  // Else from the host.
  uint32_t first_position;
  uint32_t num_rows;
  uint32_t first_token;  // Index into the token ids.
  uint32_t end_position;
  uint32_t first_block;  // Index into the block tables.
  uint16_t num_drafts;
  uint16_t draws;
};

// A step's input, in pinned memory of the host and, copied, on the device:
//   input := CudaStepHeader rows:CudaRows{num_sequences}
//            token_ids:u32{num_tokens} block_tables:u32{num_blocks}
struct CudaStepHeader {
  uint64_t step;  // Counts from 1.
  uint32_t num_sequences;
  uint32_t num_tokens;
  uint32_t num_blocks;
  uint32_t padding[3];
};
static_assert(sizeof(CudaStepHeader) == 32 && sizeof(CudaRows) == 32);

struct CudaStepInput {
  CudaStepHeader* header;
  CudaRows* rows;
  uint32_t* token_ids;
  uint32_t* block_tables;
};

BATON_HOST_DEVICE inline size_t CudaInputBytes(size_t sequences, size_t tokens,
                                               size_t blocks) {
  return sizeof(CudaStepHeader) + sequences * sizeof(CudaRows) +
         (tokens + blocks) * sizeof(uint32_t);
}

BATON_HOST_DEVICE inline CudaStepInput ViewCudaInput(void* base,
                                                     uint32_t sequences,
                                                     uint32_t tokens) {
  auto* header = static_cast<CudaStepHeader*>(base);
  auto* rows = reinterpret_cast<CudaRows*>(header + 1);
  auto* token_ids = reinterpret_cast<uint32_t*>(rows + sequences);
  return {header, rows, token_ids, token_ids + tokens};
}

// A step's results, in host memory that the device writes:
//   report := CudaReportHeader counts:u32{n} token_ids:u32{t * n}
//             logprobs:f32{t * n} draft_probability:f32{d * n}
// n = max_sequences, d = num_drafts, t = 1 + d; [token, sequence], so that a
// step without drafts writes little. counts := tokens | verified << 8 |
// drafts << 16.
struct CudaReportHeader {
  // Last and with release: the step that the rest is of.
  uint64_t step;
  // Of the device's clock, in nanoseconds.
  uint64_t start;
  uint64_t end;
  uint32_t num_rows;  // Really computed.
  uint32_t padding;
};
static_assert(sizeof(CudaReportHeader) == 32);

struct CudaReport {
  CudaReportHeader* header;
  uint32_t* counts;
  uint32_t* token_ids;
  float* logprobs;
  float* draft_probability;
};

BATON_HOST_DEVICE inline size_t CudaReportBytes(size_t max_sequences,
                                                size_t num_drafts) {
  return sizeof(CudaReportHeader) + (1 + 2 * (1 + num_drafts) + num_drafts) *
                                        max_sequences * sizeof(uint32_t);
}

BATON_HOST_DEVICE inline CudaReport ViewCudaReport(void* base,
                                                   size_t max_sequences,
                                                   size_t num_drafts) {
  auto* header = static_cast<CudaReportHeader*>(base);
  auto* counts = reinterpret_cast<uint32_t*>(header + 1);
  uint32_t* token_ids = counts + max_sequences;
  auto* logprobs =
      reinterpret_cast<float*>(token_ids + (1 + num_drafts) * max_sequences);
  return {header, counts, token_ids, logprobs,
          logprobs + (1 + num_drafts) * max_sequences};
}

// The model until there are kernels (stand_in_model.h).
struct StandInOptions {
  uint32_t vocab_size;
  uint32_t num_blocks;    // Of its cache.
  uint32_t right_drafts;  // Of 256.
  uint32_t padding;
  uint64_t step_nanoseconds;  // Of a forward pass.
};

struct CudaDeviceOptions {
  uint32_t device;
  uint32_t ring_size;  // Steps in flight at most; inputs and reports.
  // In one step.
  uint32_t max_sequences;
  uint32_t max_tokens;
  uint32_t max_blocks;
  uint32_t num_drafts;
  StandInOptions model;
};

// The host's half of the ring; step s has place s % ring_size. A place is the
// device's from copy_input to the report of its step.
struct CudaDeviceMemory {
  void* inputs[kMaxCudaRing];
  void* reports[kMaxCudaRing];
};

// Thread rule: describe and create: any thread. copy_input and launch: the
// engine thread; check: any. Functions that return int: 0, or failed for good,
// as error() says.
struct CudaApi {
  uint32_t version;
  void* context;  // For describe and create.
  // Writes a line: the GPUs there are, or why none. Returns how many.
  int (*describe)(void* context, char* line, size_t size);
  // A device with `options`, or null and why in `error`.
  void* (*create)(void* context, const CudaDeviceOptions* options,
                  CudaDeviceMemory* memory, char* error, size_t size);
  void (*destroy)(void* device);  // Waits for what was launched.
  // Starts to copy the input of `step`. Nothing waits.
  int (*copy_input)(void* device, uint64_t step, size_t bytes);
  // Enqueues the step behind the one before. REQUIRES: copy_input(step).
  int (*launch)(void* device, uint64_t step, uint32_t num_sequences);
  int (*check)(void* device);
  const char* (*error)(void* device);
};

using CudaApiFunction = const CudaApi* (*)();

}  // namespace baton

#endif  // BATON_KERNELS_CUDA_CUDA_API_H_
