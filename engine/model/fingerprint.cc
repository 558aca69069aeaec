#include "engine/model/fingerprint.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_format.h"

namespace baton {
namespace {

constexpr size_t kHashedTensorBytes = 4096;

// 2^88 + 2^8 + 0x3b
constexpr unsigned __int128 kFnvPrime =
    (static_cast<unsigned __int128>(1) << 88) | 0x13b;

}  // namespace

void Hash128::AddNumber(uint64_t number) {
  state_ = (state_ ^ number) * kFnvPrime;
}

void Hash128::Add(std::span<const std::byte> bytes) {
  AddNumber(bytes.size());
  for (size_t i = 0; i < bytes.size(); i += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + i,
                std::min(sizeof(word), bytes.size() - i));
    AddNumber(word);
  }
}

std::string Hash128::Hex() const {
  return absl::StrFormat("%016x%016x", static_cast<uint64_t>(state_ >> 64),
                         static_cast<uint64_t>(state_));
}

std::string ModelFingerprint(std::string_view config_json,
                             const ModelTensors& tensors, CacheKind cache) {
  Hash128 hash;
  hash.AddNumber(kNumericsVersion);
  hash.Add(NumericsName(cache.numerics));
  hash.Add("cpu");
  hash.Add(cache.dtype == CacheDtype::kF32 ? "f32" : "bf16");
  if (cache.has_drafter) hash.Add("drafter");
  hash.Add(config_json);
  hash.AddNumber(tensors.tensors().size());
  for (const Tensor& tensor : tensors.tensors()) {
    hash.Add(tensor.name);
    hash.Add(TensorDtypeName(tensor.dtype));
    hash.Add(std::as_bytes(std::span(tensor.shape)));
    hash.Add(
        tensor.bytes.first(std::min(tensor.bytes.size(), kHashedTensorBytes)));
  }
  return hash.Hex();
}

}  // namespace baton
