#include "kernels/cuda/cuda_api.h"

#include <cstdio>
#include <memory>
#include <string>

#include "cuda_runtime_api.h"
#include "kernels/cuda/cuda_device_stream.h"

namespace baton {
namespace {

CudaDeviceStream& Stream(void* device) {
  return *static_cast<CudaDeviceStream*>(device);
}

int Describe(void*, char* line, size_t size) {
  int version = 0;
  int count = 0;
  cudaRuntimeGetVersion(&version);
  const cudaError_t code = cudaGetDeviceCount(&count);
  if (code != cudaSuccess || count == 0) {
    std::snprintf(line, size, "cuda %d.%d, no GPU (%s)", version / 1000,
                  version % 1000 / 10, cudaGetErrorString(code));
    return 0;
  }
  cudaDeviceProp properties = {};
  cudaGetDeviceProperties(&properties, 0);
  std::snprintf(line, size, "cuda %d.%d, %d GPU%s (%s)", version / 1000,
                version % 1000 / 10, count, count == 1 ? "" : "s",
                properties.name);
  return count;
}

void* Create(void*, const CudaDeviceOptions* options, CudaDeviceMemory* memory,
             char* error, size_t size) {
  std::string why;
  std::unique_ptr<CudaDeviceStream> stream =
      CudaDeviceStream::Create(*options, &why);
  if (stream == nullptr) {
    std::snprintf(error, size, "%s", why.c_str());
    return nullptr;
  }
  *memory = stream->memory();
  return stream.release();
}

constexpr CudaApi kApi = {
    .version = kCudaApiVersion,
    .context = nullptr,
    .describe = Describe,
    .create = Create,
    .destroy = [](void* device) { delete &Stream(device); },
    .copy_input =
        [](void* device, uint64_t step, size_t bytes) {
          return Stream(device).CopyInput(step, bytes) ? 0 : 1;
        },
    .launch =
        [](void* device, uint64_t step, uint32_t num_sequences) {
          return Stream(device).Launch(step, num_sequences) ? 0 : 1;
        },
    .check = [](void* device) { return Stream(device).Check() ? 0 : 1; },
    .error = [](void* device) { return Stream(device).error().c_str(); },
};

}  // namespace
}  // namespace baton

extern "C" const baton::CudaApi* BatonCudaApi() { return &baton::kApi; }
