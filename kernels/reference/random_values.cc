#include "kernels/reference/random_values.h"

namespace baton {

uint64_t RandomValues::Next() {
  uint64_t x = state_ += 0x9e3779b97f4a7c15u;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

int RandomValues::Below(int limit) {
  return static_cast<int>(Next() % static_cast<uint64_t>(limit));
}

double RandomValues::Uniform() {
  return static_cast<double>(Next() >> 11) * 0x1p-53;
}

float RandomValues::Normal(float scale) {
  double sum = -6;
  for (int i = 0; i < 12; ++i) sum += Uniform();
  return static_cast<float>(sum) * scale;
}

std::vector<float> RandomValues::Normals(size_t n, float scale) {
  std::vector<float> values(n);
  for (float& value : values) value = Normal(scale);
  return values;
}

}  // namespace baton
