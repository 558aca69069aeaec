#include "kernels/cuda/cuda_library.h"

#include <cstdio>
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

TEST(CudaLibraryTest, NothingLiesBesideThisTest) {
  const auto api = OpenCudaLibraryBesideProgram();
  EXPECT_EQ(api.status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(api.status().message(), "no libbaton_cuda.so beside the program");
}

TEST(CudaLibraryTest, ADescriptionWithoutAGpuIsTheReason) {
  CudaApi api = {};
  api.describe = [](void*, char* line, size_t size) {
    std::snprintf(line, size, "cuda 13.0, no GPU (no driver)");
    return 0;
  };
  EXPECT_EQ(DescribeCudaDevices(api).status(),
            absl::UnavailableError("cuda 13.0, no GPU (no driver)"));
  api.describe = [](void*, char* line, size_t size) {
    std::snprintf(line, size, "cuda 13.0, 1 GPU (NVIDIA H200)");
    return 1;
  };
  EXPECT_EQ(DescribeCudaDevices(api).value(), "cuda 13.0, 1 GPU (NVIDIA H200)");
}

}  // namespace
}  // namespace baton
