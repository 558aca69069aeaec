#include "base/random.h"

#include <random>

namespace baton {

uint64_t RandomBits() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

}  // namespace baton
