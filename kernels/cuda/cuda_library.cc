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

absl::StatusOr<const CudaApi*> OpenCudaLibraryNear(const std::string& folder) {
  for (const char* place : {"", "../lib/", "../kernels/cuda/"}) {
    auto api =
        OpenCudaLibrary(absl::StrCat(folder, "/", place, kCudaLibraryName));
    if (!absl::IsNotFound(api.status())) return api;
  }
  return absl::NotFoundError(
      absl::StrCat("no ", kCudaLibraryName, " near the program"));
}

absl::StatusOr<const CudaApi*> OpenCudaLibraryNearProgram() {
  std::error_code ignored;
  return OpenCudaLibraryNear(
      std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path());
}

absl::StatusOr<std::string> DescribeCudaDevices(const CudaApi& api) {
  char line[512] = {};
  if (api.describe(api.context, line, sizeof(line)) > 0) return line;
  return absl::UnavailableError(line);
}

std::string DeviceLine(const absl::StatusOr<const CudaApi*>& api) {
  const absl::StatusOr<std::string> devices =
      api.ok() ? DescribeCudaDevices(**api) : api.status();
  if (devices.ok()) return *devices;
  return absl::StrCat("cpu (", devices.status().message(), ")");
}

}  // namespace baton
