// Drives a fuzz target: by libFuzzer where it is built for it (--config=fuzz),
// else through its corpus, every truncation of it, and random changes.
//
//   TARGET CORPUS_FILE [libFuzzer's flags]
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/escaping.h"
#include "base/logging.h"
#include "tests/fuzz/fuzz_target.h"

namespace baton {
namespace {

std::vector<std::string> ReadCorpus(const char* path) {
  std::vector<std::string> corpus = FuzzSeeds();
  CHECK(!corpus.empty());
  std::ifstream file(path);
  CHECK(file.is_open()) << path;
  std::string line;
  while (std::getline(file, line)) {
    if (line.empty() || line[0] == '#') continue;
    corpus.push_back(absl::HexStringToBytes(line));
    CHECK_EQ(corpus.back().size() * 2, line.size()) << path << ": " << line;
  }
  return corpus;
}

}  // namespace
}  // namespace baton

#ifdef BATON_LIBFUZZER

// Before libFuzzer reads its flags: the corpus becomes a folder.
extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  using baton::ReadCorpus;
  static std::vector<std::string> words(*argv, *argv + *argc);
  CHECK(words.size() > 1) << "usage: " << words[0] << " CORPUS_FILE [FLAGS]";
  const char* const scratch = std::getenv("TEST_TMPDIR");
  const std::filesystem::path folder =
      std::filesystem::path(scratch == nullptr ? "." : scratch) / "corpus";
  std::filesystem::create_directories(folder);
  int number = 0;
  for (const std::string& input : ReadCorpus(words[1].c_str())) {
    std::ofstream(folder / std::to_string(number++)) << input;
  }
  words[1] = folder.string();
  static std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  *argv = pointers.data();
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  baton::FuzzOne({reinterpret_cast<const char*>(data), size});
  return 0;
}

#else

namespace baton {
namespace {

constexpr int kChangesOfEach = 300;

// A few bytes set, dropped, doubled, or taken from another input.
std::string Change(std::string bytes, const std::vector<std::string>& corpus,
                   std::mt19937_64* random) {
  const auto below = [&](size_t n) {
    return (*random)() % std::max<size_t>(n, 1);
  };
  for (int i = static_cast<int>(below(4)); i >= 0; --i) {
    const size_t at = below(bytes.size() + 1);
    const size_t length = std::min(below(9), bytes.size() - at);
    switch (below(5)) {
      case 0:
        if (at < bytes.size()) bytes[at] = static_cast<char>((*random)());
        break;
      case 1:
        if (at < bytes.size()) bytes[at] = below(2) == 0 ? '\0' : '\xff';
        break;
      case 2:
        bytes.erase(at, length);
        break;
      case 3:
        bytes.insert(at, bytes.substr(at, length));
        break;
      default: {
        const std::string& other = corpus[below(corpus.size())];
        const size_t from = below(other.size() + 1);
        bytes.replace(at, length, other.substr(from, below(17)));
      }
    }
  }
  return bytes;
}

int Main(int argc, char** argv) {
  CHECK_GT(argc, 1) << "usage: " << argv[0] << " CORPUS_FILE";
  const std::vector<std::string> corpus = ReadCorpus(argv[1]);
  std::mt19937_64 random(1);
  size_t runs = 0;
  for (const std::string& input : corpus) {
    FuzzOne(input);
    // Every one of a short input.
    const size_t step = input.size() / 512 + 1;
    for (size_t n = 0; n < input.size(); n += step, ++runs) {
      FuzzOne(std::string_view(input).substr(0, n));
    }
    for (int i = 0; i < kChangesOfEach; ++i, ++runs) {
      FuzzOne(Change(input, corpus, &random));
    }
  }
  std::cout << corpus.size() << " inputs, " << runs << " changes of them\n";
  return 0;
}

}  // namespace
}  // namespace baton

int main(int argc, char** argv) { return baton::Main(argc, argv); }

#endif
