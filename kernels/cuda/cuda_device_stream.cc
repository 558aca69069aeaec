#include "kernels/cuda/cuda_device_stream.h"

#include "kernels/cuda/stand_in_kernels.h"

namespace baton {
namespace {

// Sequences between one graph and the next larger one.
constexpr uint32_t kBucketSequences = 32;

}  // namespace

std::unique_ptr<CudaDeviceStream> CudaDeviceStream::Create(
    const CudaDeviceOptions& options, std::string* error) {
  std::unique_ptr<CudaDeviceStream> stream(new CudaDeviceStream(options));
  if (stream->Open() && stream->Allocate() && stream->CaptureGraphs()) {
    return stream;
  }
  *error = stream->error_;
  return nullptr;
}

CudaDeviceStream::~CudaDeviceStream() {
  if (compute_ != nullptr) cudaStreamSynchronize(compute_);
  if (copy_ != nullptr) cudaStreamSynchronize(copy_);
  for (cudaEvent_t event : copied_) {
    if (event != nullptr) cudaEventDestroy(event);
  }
  for (cudaGraphExec_t graph : graphs_) cudaGraphExecDestroy(graph);
  for (void* memory : device_memory_) cudaFree(memory);
  for (void* memory : host_memory_) cudaFreeHost(memory);
  if (copy_ != nullptr) cudaStreamDestroy(copy_);
  if (compute_ != nullptr) cudaStreamDestroy(compute_);
}

bool CudaDeviceStream::CopyInput(uint64_t step, size_t bytes) {
  const size_t place = step % options_.ring_size;
  return Ok(cudaSetDevice(static_cast<int>(options_.device)), "the device") &&
         Ok(cudaMemcpyAsync(steps_[place].input, memory_.inputs[place], bytes,
                            cudaMemcpyHostToDevice, copy_),
            "copying an input") &&
         Ok(cudaEventRecord(copied_[place], copy_), "an input's event");
}

bool CudaDeviceStream::Launch(uint64_t step, uint32_t num_sequences) {
  const size_t bucket = (num_sequences - 1) / kBucketSequences;
  const size_t place = step % options_.ring_size;
  // Fired long since where steps queue, and then free.
  return Ok(cudaStreamWaitEvent(compute_, copied_[place], 0),
            "waiting for an input") &&
         Ok(cudaGraphLaunch(graphs_[bucket * options_.ring_size + place],
                            compute_),
            "launching a step");
}

bool CudaDeviceStream::Check() {
  const cudaError_t code = cudaStreamQuery(compute_);
  return Ok(code == cudaErrorNotReady ? cudaSuccess : code, "a step");
}

bool CudaDeviceStream::Open() {
  if (!Ok(cudaSetDevice(static_cast<int>(options_.device)), "the device") ||
      !Ok(cudaStreamCreateWithFlags(&compute_, cudaStreamNonBlocking),
          "a stream") ||
      !Ok(cudaStreamCreateWithFlags(&copy_, cudaStreamNonBlocking),
          "a stream")) {
    return false;
  }
  for (cudaEvent_t& event : copied_) {
    if (!Ok(cudaEventCreateWithFlags(&event, cudaEventDisableTiming),
            "an event")) {
      return false;
    }
  }
  return true;
}

bool CudaDeviceStream::Allocate() {
  const size_t sequences = options_.max_sequences;
  StandInStep shared = {};
  shared.options = options_;
  if (!AllocateDevice(&shared.slots, sequences) ||
      !AllocateDevice(&shared.corrected, sequences) ||
      !AllocateDevice(&shared.hidden, sequences * (1 + options_.num_drafts)) ||
      !AllocateDevice(&shared.cache, size_t{options_.model.num_blocks} *
                                         kStandInBlockTokens) ||
      !AllocateDevice(&shared.steps_done, 1) ||
      !AllocateDevice(&shared.start, 1) ||
      !AllocateDevice(&shared.num_rows, 1)) {
    return false;
  }
  const size_t input_bytes =
      CudaInputBytes(sequences, options_.max_tokens, options_.max_blocks);
  for (uint32_t i = 0; i < options_.ring_size; ++i) {
    std::byte* input = nullptr;
    if (!AllocateHost(&memory_.inputs[i], input_bytes) ||
        !AllocateHost(&memory_.reports[i],
                      CudaReportBytes(sequences, options_.num_drafts)) ||
        !AllocateDevice(&input, input_bytes)) {
      return false;
    }
    steps_[i] = shared;
    steps_[i].input = input;
    if (!Ok(cudaHostGetDevicePointer(&steps_[i].report, memory_.reports[i], 0),
            "mapping a report")) {
      return false;
    }
  }
  return Ok(cudaDeviceSynchronize(), "clearing memory");
}

bool CudaDeviceStream::CaptureGraphs() {
  for (uint32_t first = 0; first < options_.max_sequences;
       first += kBucketSequences) {
    for (uint32_t i = 0; i < options_.ring_size; ++i) {
      if (!CaptureGraph(steps_[i], first + kBucketSequences)) return false;
    }
  }
  return true;
}

bool CudaDeviceStream::CaptureGraph(const StandInStep& step, uint32_t bucket) {
  cudaGraph_t graph = nullptr;
  if (!Ok(cudaStreamBeginCapture(compute_, cudaStreamCaptureModeThreadLocal),
          "capturing")) {
    return false;
  }
  const cudaError_t launched = LaunchStandInStep(step, bucket, compute_);
  if (!Ok(cudaStreamEndCapture(compute_, &graph), "capturing") ||
      !Ok(launched, "capturing a step")) {
    return false;
  }
  cudaGraphExec_t executable = nullptr;
  const cudaError_t made = cudaGraphInstantiate(&executable, graph, 0);
  cudaGraphDestroy(graph);
  if (!Ok(made, "a graph")) return false;
  graphs_.push_back(executable);
  // Else the first launch would pay for it.
  return Ok(cudaGraphUpload(executable, compute_), "uploading a graph");
}

bool CudaDeviceStream::Ok(cudaError_t code, const char* what) {
  if (code == cudaSuccess) return true;
  if (error_.empty()) {
    error_ = std::string(what) + ": " + cudaGetErrorString(code);
  }
  return false;
}

template <typename T>
bool CudaDeviceStream::AllocateDevice(T** to, size_t count) {
  void* memory = nullptr;
  if (!Ok(cudaMalloc(&memory, count * sizeof(T)), "GPU memory")) return false;
  device_memory_.push_back(memory);
  *to = static_cast<T*>(memory);
  return Ok(cudaMemset(memory, 0, count * sizeof(T)), "GPU memory");
}

bool CudaDeviceStream::AllocateHost(void** to, size_t bytes) {
  if (!Ok(cudaHostAlloc(to, bytes, cudaHostAllocMapped), "pinned memory")) {
    return false;
  }
  host_memory_.push_back(*to);
  auto* memory = static_cast<std::byte*>(*to);
  for (size_t i = 0; i < bytes; ++i) memory[i] = std::byte{0};
  return true;
}

}  // namespace baton
