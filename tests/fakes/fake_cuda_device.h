// The CUDA half without a GPU: the stand-in kernels' bodies, run by hand.
#ifndef BATON_TESTS_FAKES_FAKE_CUDA_DEVICE_H_
#define BATON_TESTS_FAKES_FAKE_CUDA_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/cuda/cuda_api.h"
#include "kernels/cuda/stand_in_step.h"

namespace baton {

// One device at a time. The table's functions: one thread; RunStep: one, which
// may be another. Inputs are read as late as a GPU may. Dies when a place of
// the ring is used before its step is done.
class FakeCudaDevice {
 public:
  FakeCudaDevice();
  ~FakeCudaDevice();
  FakeCudaDevice(const FakeCudaDevice&) = delete;
  FakeCudaDevice& operator=(const FakeCudaDevice&) = delete;

  const CudaApi* api() const { return &api_; }
  // From now on Create and Check fail, and this is why.
  void Fail(std::string why) { failure_ = std::move(why); }
  // Runs the oldest launched step to its report; false if there is none.
  bool RunStep();
  // Its clock, read at each step's start and end.
  void set_nanoseconds(uint64_t now) { nanoseconds_ = now; }
  bool created() const { return memory_ != nullptr; }

 private:
  struct Memory;

  void* Create(const CudaDeviceOptions& options, CudaDeviceMemory* memory);
  void CopyInput(uint64_t step, size_t bytes);
  void Launch(uint64_t step, uint32_t num_sequences);

  CudaApi api_;
  std::string failure_;
  uint64_t nanoseconds_ = 0;
  std::unique_ptr<Memory> memory_;
};

}  // namespace baton

#endif  // BATON_TESTS_FAKES_FAKE_CUDA_DEVICE_H_
