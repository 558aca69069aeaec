#include "kernels/cuda/cuda_library.h"

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include "gtest/gtest.h"

namespace baton {
namespace {

TEST(CudaLibraryTest, AMissingLibraryIsNotFoundByName) {
  const auto api = OpenCudaLibrary("/nowhere/libbaton_cuda.so");
  EXPECT_EQ(api.status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(api.status().message(), "/nowhere/libbaton_cuda.so: no such file");
}

TEST(CudaLibraryTest, AFileThatIsNoLibrarySaysWhy) {
  const std::string path = testing::TempDir() + "/libbaton_cuda.so";
  std::ofstream(path) << "no library";
  const auto api = OpenCudaLibrary(path);
  EXPECT_EQ(api.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(std::string(api.status().message()).find(path), std::string::npos);
}

TEST(CudaLibraryTest, ALibraryWithoutTheTableIsRefused) {
  const auto api = OpenCudaLibrary("/proc/self/exe");
  EXPECT_EQ(api.status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(CudaLibraryTest, IsLookedForNearAFolder) {
  const std::filesystem::path root =
      std::filesystem::path(testing::TempDir()) / "near";
  std::filesystem::create_directories(root / "bin");
  EXPECT_EQ(OpenCudaLibraryNear(root / "bin").status(),
            absl::NotFoundError("no libbaton_cuda.so near the program"));
  std::filesystem::create_directories(root / "lib");
  std::ofstream(root / "lib" / kCudaLibraryName) << "no library";
  EXPECT_EQ(OpenCudaLibraryNear(root / "bin").status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST(CudaLibraryTest, TheDescriptionWithoutAGpuIsTheReason) {
  CudaApi api = {};
  api.describe = [](void*, char* line, size_t size) {
    std::snprintf(line, size, "cuda 13.0, no GPU (no driver)");
    return 0;
  };
  EXPECT_EQ(DescribeCudaDevices(api).status(),
            absl::UnavailableError("cuda 13.0, no GPU (no driver)"));
  EXPECT_EQ(DeviceLine(&api), "cpu (cuda 13.0, no GPU (no driver))");
  api.describe = [](void*, char* line, size_t size) {
    std::snprintf(line, size, "cuda 13.0, 1 GPU (NVIDIA H200)");
    return 1;
  };
  EXPECT_EQ(DescribeCudaDevices(api).value(), "cuda 13.0, 1 GPU (NVIDIA H200)");
  EXPECT_EQ(DeviceLine(&api), "cuda 13.0, 1 GPU (NVIDIA H200)");
}

TEST(CudaLibraryTest, WithoutALibraryTheDeviceIsTheCpu) {
  EXPECT_EQ(DeviceLine(OpenCudaLibraryNear("/nowhere")),
            "cpu (no libbaton_cuda.so near the program)");
}

}  // namespace
}  // namespace baton
