// The contract of StepExecutor on a real GPU: the tokens are the CPU's.
#include <memory>

#include "engine/cuda_step_executor.h"
#include "engine/llm_engine.h"
#include "gtest/gtest.h"
#include "kernels/cuda/cuda_library.h"
#include "tests/fakes/cuda_stand_in_rank.h"

namespace baton {
namespace {

class CudaStepExecutorGpuTest : public testing::TestWithParam<uint32_t> {
 protected:
  static void RunLoad(const CudaStandInRank::Options& options, bool preempts) {
    const CudaApi* api = OpenCudaLibraryNearProgram().value();
    ASSERT_TRUE(DescribeCudaDevices(*api).ok())
        << DescribeCudaDevices(*api).status();
    CudaStandInRank rank(options, api);
    while (!rank.engine().idle()) {
      rank.engine().Advance();
      rank.executor().Poll();
    }
    EXPECT_TRUE(rank.load().done());
    EXPECT_EQ(rank.CountWrong(), 0u);
    EXPECT_EQ(rank.num_preemptions() > 0, preempts);
    EXPECT_EQ(rank.num_accepted() > 0, options.drafts > 0);
  }
};

INSTANTIATE_TEST_SUITE_P(Depths, CudaStepExecutorGpuTest,
                         testing::Values(1, 2, 3));

TEST_P(CudaStepExecutorGpuTest, TokensAreTheCpus) {
  RunLoad({.depth = GetParam(), .num_requests = 500}, false);
}

TEST_P(CudaStepExecutorGpuTest, DraftsChangeNoToken) {
  RunLoad({.depth = GetParam(), .drafts = 5, .num_requests = 500}, false);
}

TEST_P(CudaStepExecutorGpuTest, PreemptionChangesNoToken) {
  RunLoad({.depth = GetParam(),
           .drafts = 2,
           .num_blocks = 16,
           .load = {.prompt_tokens = 20, .max_tokens = 400}},
          true);
}

TEST_P(CudaStepExecutorGpuTest, ADeviceThatIsNotThereSaysSo) {
  const CudaApi* api = OpenCudaLibraryNearProgram().value();
  const auto executor = CudaStepExecutor::Create(
      {.engine = {.pipeline_depth = GetParam()}, .device = 99, .num_blocks = 8},
      api);
  EXPECT_EQ(
      executor.status(),
      absl::UnavailableError("GPU 99: the device: invalid device ordinal"));
}

}  // namespace
}  // namespace baton
