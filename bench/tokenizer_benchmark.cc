// How fast text becomes ids, for texts of a mebibyte in many shapes. Each shape
// is to reach 5 MB/s, and to take at most twice the time of prose for a byte.
//
//   bazel run //bench:tokenizer_benchmark -- $PWD/models/tiny-deepseek-v3
//
// A folder of another model with byte-level BPE does too.
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "benchmark/benchmark.h"
#include "server/text/detokenizer.h"
#include "server/text/tokenizer.h"

namespace baton {
namespace {

constexpr size_t kTextBytes = 1 << 20;

std::string Repeat(std::string_view unit) {
  std::string text;
  while (text.size() < kTextBytes) text.append(unit);
  return text;
}

// Words of random tokens between spaces: no two pages are alike.
std::string RandomProse(const Tokenizer& tokenizer) {
  std::mt19937 random(1);
  std::string text;
  while (text.size() < kTextBytes) {
    const std::string_view token =
        tokenizer.TokenBytes(random() % tokenizer.vocab_size());
    if (token.size() > 2 && token[0] == ' ') text.append(token);
    if (random() % 200 == 0) text.append(".\n");
  }
  return text;
}

std::string RandomBytes(uint32_t first, uint32_t last) {
  std::mt19937 random(1);
  std::string text;
  while (text.size() < kTextBytes) {
    text.push_back(static_cast<char>(first + random() % (last + 1 - first)));
  }
  return text;
}

using Shapes = std::vector<std::pair<std::string, std::string>>;

Shapes AllShapes(const Tokenizer& tokenizer) {
  return {
      {"prose", RandomProse(tokenizer)},
      {"one_letter", Repeat("a")},
      {"random_letters", RandomBytes('a', 'z')},
      {"two_letters", RandomBytes('a', 'b')},
      {"digits", RandomBytes('0', '9')},
      {"punctuation", RandomBytes('!', '/')},
      {"ascii", RandomBytes(' ', '~')},
      {"spaces", Repeat(" ")},
      {"newlines", Repeat("\n")},
      {"spaces_then_letter", std::string(kTextBytes, ' ') + "a"},
      {"space_newline", Repeat(" \n")},
      {"control", Repeat("\x01")},
      {"chinese", Repeat("\u4f60\u597d\u4e16\u754c")},
      {"accents", Repeat("\u00e9\u00e8\u00fc")},
      {"combining_marks", "a" + Repeat("\u0301")},
      {"emoji_zwj", Repeat("\U0001F468\u200D\U0001F469\u200D\U0001F467")},
      {"invalid_utf8", RandomBytes(0x80, 0xFF)},
      {"special_tokens", Repeat("<\uff5cUser\uff5c>")},
      {"half_special_tokens", Repeat("<\uff5cUser")},
  };
}

void EncodeText(benchmark::State& state, const Tokenizer& tokenizer,
                const std::string& text, bool parse_special) {
  size_t num_tokens = 0;
  for (auto unused : state) {
    const auto ids = tokenizer.Encode(text, parse_special);
    if (!ids.ok()) {
      state.SkipWithError(std::string(ids.status().message()).c_str());
      return;
    }
    num_tokens = ids->size();
  }
  state.SetBytesProcessed(
      static_cast<int64_t>(state.iterations() * text.size()));
  state.counters["tokens"] = static_cast<double>(num_tokens);
}

void StreamText(benchmark::State& state, const Tokenizer& tokenizer,
                const std::string& text) {
  const std::vector<uint32_t> ids = tokenizer.Encode(text, false).value();
  for (auto unused : state) {
    Detokenizer detokenizer(&tokenizer, /*skip_special_tokens=*/true);
    std::string out;
    for (const uint32_t id : ids) detokenizer.Append(id, &out);
    detokenizer.Flush(&out);
    benchmark::DoNotOptimize(out.data());
  }
  state.SetBytesProcessed(
      static_cast<int64_t>(state.iterations() * text.size()));
  state.SetItemsProcessed(
      static_cast<int64_t>(state.iterations() * ids.size()));
}

int Run(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (argc != 2) {
    std::fprintf(stderr, "usage: tokenizer_benchmark MODEL_FOLDER\n");
    return 2;
  }
  const auto tokenizer = Tokenizer::Load(argv[1]);
  if (!tokenizer.ok()) {
    std::fprintf(stderr, "%s\n", tokenizer.status().ToString().c_str());
    return 1;
  }
  const Shapes shapes = AllShapes(**tokenizer);
  for (const auto& [name, text] : shapes) {
    for (const bool parse_special : {false, true}) {
      benchmark::RegisterBenchmark(
          ((parse_special ? "encode_parsed/" : "encode/") + name).c_str(),
          [&tokenizer, &text = text, parse_special](benchmark::State& state) {
            EncodeText(state, **tokenizer, text, parse_special);
          });
    }
  }
  benchmark::RegisterBenchmark("stream/prose", [&](benchmark::State& state) {
    StreamText(state, **tokenizer, shapes[0].second);
  });
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}

}  // namespace
}  // namespace baton

int main(int argc, char** argv) { return baton::Run(argc, argv); }
