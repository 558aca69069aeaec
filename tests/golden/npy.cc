#include "tests/golden/npy.h"

#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>

#include "base/logging.h"

namespace baton {

// "\x93NUMPY" version{2} header_bytes:u16le header data
std::vector<float> ReadNpyF32(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), {});
  CHECK_GT(bytes.size(), 10u) << path;
  CHECK(bytes.starts_with("\x93NUMPY\x01")) << path;
  uint16_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes.data() + 8, sizeof(header_bytes));
  const size_t begin = 10 + size_t{header_bytes};
  CHECK_LE(begin, bytes.size()) << path;
  CHECK_NE(bytes.substr(10, header_bytes).find("'<f4'"), std::string::npos)
      << path;
  std::vector<float> values((bytes.size() - begin) / sizeof(float));
  std::memcpy(values.data(), bytes.data() + begin,
              values.size() * sizeof(float));
  return values;
}

}  // namespace baton
