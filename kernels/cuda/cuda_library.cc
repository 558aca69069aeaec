#include "kernels/cuda/cuda_library.h"

#include <dlfcn.h>

#include <filesystem>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace baton {

absl::StatusOr<const CudaApi*> OpenCudaLibrary(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) {
    return absl::NotFoundError(absl::StrCat(path, ": no such file"));
  }
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return absl::FailedPreconditionError(dlerror());
  const auto function =
      reinterpret_cast<CudaApiFunction>(dlsym(library, kCudaApiSymbol));
  if (function == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, ": no ", kCudaApiSymbol));
  }
  const CudaApi* api = function();
  if (api->version != kCudaApiVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, ": version ", api->version, ", not ",
                     kCudaApiVersion, ": install both of one build"));
  }
  return api;
}

absl::StatusOr<const CudaApi*> OpenCudaLibraryBesideProgram() {
  std::error_code ignored;
  const std::filesystem::path folder =
      std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path();
  for (const char* place : {".", "../lib", "../kernels/cuda"}) {
    auto api = OpenCudaLibrary(folder / place / kCudaLibraryName);
    if (!absl::IsNotFound(api.status())) return api;
  }
  return absl::NotFoundError(
      absl::StrCat("no ", kCudaLibraryName, " beside the program"));
}

absl::StatusOr<std::string> DescribeCudaDevices(const CudaApi& api) {
  char line[512] = {};
  if (api.describe(api.context, line, sizeof(line)) > 0) return line;
  return absl::UnavailableError(line);
}

}  // namespace baton
