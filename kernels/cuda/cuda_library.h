// Opens libbaton_cuda.so.
#ifndef BATON_KERNELS_CUDA_CUDA_LIBRARY_H_
#define BATON_KERNELS_CUDA_CUDA_LIBRARY_H_

#include <string>

#include "absl/status/statusor.h"
#include "kernels/cuda/cuda_api.h"

namespace baton {

inline constexpr char kCudaLibraryName[] = "libbaton_cuda.so";

// The table of the library at `path`, which stays open for good: it starts
// threads of the driver. NOT_FOUND: no such file; FAILED_PRECONDITION: it does
// not open, or is of another version.
absl::StatusOr<const CudaApi*> OpenCudaLibrary(const std::string& path);

// The same, where the library lies: in `folder`, or its ../lib or
// ../kernels/cuda.
absl::StatusOr<const CudaApi*> OpenCudaLibraryNear(const std::string& folder);
// Near the program that runs.
absl::StatusOr<const CudaApi*> OpenCudaLibraryNearProgram();

// Such as "cuda 13.0, 1 GPU (NVIDIA H200)"; UNAVAILABLE with the reason where
// there is no GPU.
absl::StatusOr<std::string> DescribeCudaDevices(const CudaApi& api);

// For a program's first line: "cuda 13.0, 1 GPU (NVIDIA H200)", or "cpu (why no
// GPU)".
std::string DeviceLine(const absl::StatusOr<const CudaApi*>& api);

}  // namespace baton

#endif  // BATON_KERNELS_CUDA_CUDA_LIBRARY_H_
