// Steps on a GPU: a compute stream of graphs, a copy stream of inputs.
#ifndef BATON_KERNELS_CUDA_CUDA_DEVICE_STREAM_H_
#define BATON_KERNELS_CUDA_CUDA_DEVICE_STREAM_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cuda_runtime_api.h"
#include "kernels/cuda/cuda_api.h"
#include "kernels/cuda/stand_in_step.h"

namespace baton {

// Owns the GPU's memory and the ring in the host's. The host never waits: it
// copies, launches, and sees the report in its own memory. Thread rule: as
// CudaApi.
class CudaDeviceStream {
 public:
  // Captures a graph for each bucket of sequences and place in the ring. Null,
  // and why in *error.
  static std::unique_ptr<CudaDeviceStream> Create(
      const CudaDeviceOptions& options, std::string* error);
  ~CudaDeviceStream();
  CudaDeviceStream(const CudaDeviceStream&) = delete;
  CudaDeviceStream& operator=(const CudaDeviceStream&) = delete;

  CudaDeviceMemory memory() const { return memory_; }
  // False: failed for good, as error() says.
  bool CopyInput(uint64_t step, size_t bytes);
  bool Launch(uint64_t step, uint32_t num_sequences);
  bool Check();
  const std::string& error() const { return error_; }

 private:
  explicit CudaDeviceStream(const CudaDeviceOptions& options)
      : options_(options) {}

  bool Open();
  bool Allocate();
  bool CaptureGraphs();
  bool CaptureGraph(const StandInStep& step, uint32_t bucket);
  // Keeps the first error.
  bool Ok(cudaError_t code, const char* what);
  template <typename T>
  bool AllocateDevice(T** to, size_t count);
  bool AllocateHost(void** to, size_t bytes);

  const CudaDeviceOptions options_;
  std::string error_;
  cudaStream_t compute_ = nullptr;
  cudaStream_t copy_ = nullptr;
  std::array<cudaEvent_t, kMaxCudaRing> copied_ = {};  // By place.
  CudaDeviceMemory memory_ = {};
  std::array<StandInStep, kMaxCudaRing> steps_ = {};
  std::vector<void*> device_memory_;
  std::vector<void*> host_memory_;
  std::vector<cudaGraphExec_t> graphs_;  // [bucket, ring]
};

}  // namespace baton

#endif  // BATON_KERNELS_CUDA_CUDA_DEVICE_STREAM_H_
