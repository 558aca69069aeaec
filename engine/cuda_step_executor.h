// Steps on a GPU, by the table of libbaton_cuda.so.
#ifndef BATON_ENGINE_CUDA_STEP_EXECUTOR_H_
#define BATON_ENGINE_CUDA_STEP_EXECUTOR_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/device_stream.h"
#include "engine/engine_options.h"
#include "engine/model_runner.h"
#include "engine/step_executor.h"
#include "engine/step_io.h"
#include "kernels/cuda/cuda_api.h"

namespace baton {

// The host never waits: a step's input is packed into pinned memory and copied
// on a stream of its own, its graph is launched behind the one before, and its
// report is seen in host memory that the GPU writes. So far the model is the
// stand-in of kernels/cuda/stand_in_model.h, whose draw has no choice: sampling
// parameters are not sent. A GPU that fails ends the process.
class CudaStepExecutor final : public StepExecutor {
 public:
  struct Options {
    EngineOptions engine = {};
    uint32_t device = 0;
    uint32_t vocab_size = 512;
    uint32_t max_context_tokens = 4096;
    uint32_t num_blocks = 0;                          // Of the pool.
    absl::Duration step_time = absl::ZeroDuration();  // Of a forward pass.
    uint32_t right_drafts = 200;                      // Of 256.
  };

  // Borrows the table.
  static absl::StatusOr<std::unique_ptr<CudaStepExecutor>> Create(
      const Options& options, const CudaApi* api);
  // REQUIRES: idle().
  ~CudaStepExecutor() override;
  CudaStepExecutor(const CudaStepExecutor&) = delete;
  CudaStepExecutor& operator=(const CudaStepExecutor&) = delete;

  const ModelRunnerInfo& info() const override { return info_; }
  void SetAfterStep(DeviceTask task) override { after_step_ = task; }
  void LaunchForward(const StepInput* input, StepOutput* output) override;
  DeviceEvent LaunchSample(const StepInput* input, StepOutput* output) override;
  // Where true, the step's output is written.
  bool HasFired(DeviceEvent event) const override;
  bool idle() const override { return polled_.load() == launched_.load(); }

  // The device's side, on any one thread: runs the task behind each step that
  // is done; true if there was one.
  bool Poll();

 private:
  struct Launch {
    const StepInput* input = nullptr;
    StepOutput* output = nullptr;
  };

  CudaStepExecutor(const Options& options, const CudaApi* api);
  size_t Pack(const StepInput& input, uint64_t step, void* to) const;
  void TakeReport(const Launch& launch, const CudaReport& report) const;
  CudaReport Report(uint64_t step) const;
  bool IsDone(uint64_t step) const;

  const CudaApi* const api_;
  const CudaDeviceOptions device_options_;
  const ModelRunnerInfo info_;
  void* device_ = nullptr;
  CudaDeviceMemory memory_ = {};
  DeviceTask after_step_;
  std::array<Launch, kMaxCudaRing> launches_;  // The engine thread.
  uint64_t num_misses_ = 0;                    // The polling thread.
  std::atomic<uint64_t> launched_{0};  // Steps; the engine thread writes.
  std::atomic<uint64_t> polled_{0};    // The polling thread writes.
};

}  // namespace baton

#endif  // BATON_ENGINE_CUDA_STEP_EXECUTOR_H_
