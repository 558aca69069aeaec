// The same rows give the same bits, whatever else changes: chunks, neighbours
// in the batch, vector width, threads, how weights are kept.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "engine/model/testing/model_driver.h"
#include "engine/model/testing/random_model.h"

namespace baton {
namespace {

using AllLogits = std::vector<ModelDriver::Logits>;

constexpr int kMaxRows = 160;
constexpr int kWhole = kMaxRows;
constexpr int kChunks[] = {1, 7, 64, 65, kWhole};

// Where two results differ first; -1 if nowhere. Compares bits, so that a NaN
// equals itself and -0 is not 0.
int FirstDifference(const AllLogits& a, const AllLogits& b) {
  for (size_t p = 0; p < std::max(a.size(), b.size()); ++p) {
    if (p >= a.size() || p >= b.size() || a[p].size() != b[p].size() ||
        std::memcmp(a[p].data(), b[p].data(), a[p].size() * sizeof(float)) !=
            0) {
      return static_cast<int>(p);
    }
  }
  return -1;
}

std::vector<uint32_t> RandomTokens(std::mt19937* random, int count,
                                   uint32_t vocab_size) {
  std::vector<uint32_t> tokens(count);
  for (uint32_t& token : tokens) token = (*random)() % vocab_size;
  return tokens;
}

bool HasDrafter(const std::string& folder) {
  std::ifstream file(folder + "/config.json");
  const auto config = nlohmann::json::parse(file);
  return config.value("num_nextn_predict_layers", nlohmann::json()) == 1;
}

std::unique_ptr<ModelDriver> Load(DriverOptions options) {
  options.load.max_rows = kMaxRows;
  options.load.max_logits_rows = kMaxRows;
  options.load.drafter = HasDrafter(options.load.folder);
  options.num_blocks = 128;
  auto driver = ModelDriver::Create(options);
  EXPECT_TRUE(driver.ok()) << driver.status();
  return driver.ok() ? *std::move(driver) : nullptr;
}

std::string WriteSmallModel(const nlohmann::json& config) {
  std::string folder = FreshTestFolder();
  WriteModel(folder, config, RandomTensors(config, 1, TensorDtype::kBf16));
  return folder;
}

// Steps of the main model, and of the drafter behind it if there is one.
class Stepper {
 public:
  // Starts with no sequences.
  explicit Stepper(ModelDriver* driver) : driver_(driver) { driver->Reset(); }

  // Of a request with a prompt of so many tokens.
  int NewSequence(int prompt_tokens) {
    past_.emplace_back();
    return driver_->NewSequence(prompt_tokens);
  }

  // All that comes out of each row: logits and, with a drafter, hidden state,
  // the drafter's logits and its hidden state; the latter two not of a
  // sequence's first row.
  AllLogits Step(std::span<const ModelDriver::Piece> pieces) {
    if (!driver_->info().has_drafter) return driver_->Step(pieces);
    const size_t width = driver_->info().hidden_size;
    size_t num_rows = 0;
    for (const auto& piece : pieces) num_rows += piece.token_ids.size();
    ModelDriver::Output main =
        driver_->StepWithHidden(pieces, RowNumbers(num_rows));
    const std::span<const float> hidden = main.hidden;
    AllLogits all = std::move(main.logits);
    DraftBatch batch;
    size_t row = 0;
    for (const ModelDriver::Piece& piece : pieces) {
      const size_t count = piece.token_ids.size();
      AddDraftRows(piece, hidden.subspan(row * width, count * width), row,
                   &batch);
      row += count;
    }
    const ModelDriver::Output drafted = driver_->Draft(
        batch.pieces, batch.hidden, RowNumbers(batch.rows.size()));
    for (size_t r = 0; r < num_rows; ++r) {
      Append(hidden.subspan(r * width, width), &all[r]);
    }
    for (size_t i = 0; i < batch.rows.size(); ++i) {
      ModelDriver::Logits& of_row = all[batch.rows[i]];
      Append(drafted.logits[i], &of_row);
      Append(std::span(drafted.hidden).subspan(i * width, width), &of_row);
    }
    return all;
  }

 private:
  struct Past {
    int num_tokens = 0;
    std::vector<float> hidden;  // Of the last token.
  };
  struct DraftBatch {
    std::vector<ModelDriver::Piece> pieces;
    std::vector<float> hidden;
    std::vector<size_t> rows;  // Of the step.
  };

  static std::vector<int32_t> RowNumbers(size_t count) {
    std::vector<int32_t> rows(count);
    std::iota(rows.begin(), rows.end(), 0);
    return rows;
  }

  static void Append(std::span<const float> values, std::vector<float>* to) {
    to->insert(to->end(), values.begin(), values.end());
  }

  void AddDraftRows(const ModelDriver::Piece& piece,
                    std::span<const float> hidden, size_t first_row,
                    DraftBatch* batch) {
    Past& past = past_[piece.sequence];
    const size_t count = piece.token_ids.size();
    const size_t width = driver_->info().hidden_size;
    const size_t skipped = past.num_tokens == 0 ? 1 : 0;
    Append(past.hidden, &batch->hidden);
    Append(hidden.first(hidden.size() - width), &batch->hidden);
    batch->pieces.push_back({piece.sequence, piece.token_ids.subspan(skipped),
                             past.num_tokens + static_cast<int>(skipped)});
    for (size_t i = skipped; i < count; ++i) {
      batch->rows.push_back(first_row + i);
    }
    past.num_tokens += static_cast<int>(count);
    past.hidden.clear();
    Append(hidden.last(width), &past.hidden);
  }

  ModelDriver* const driver_;
  std::vector<Past> past_;
};

// Prompts end within a sequence, so that rows of either form are computed.
int PromptOf(std::span<const uint32_t> tokens) {
  return static_cast<int>(tokens.size()) * 2 / 3;
}

AllLogits Alone(ModelDriver* driver, std::span<const uint32_t> tokens,
                int chunk) {
  Stepper stepper(driver);
  const int sequence = stepper.NewSequence(PromptOf(tokens));
  AllLogits all;
  for (size_t first = 0; first < tokens.size(); first += chunk) {
    const size_t count = std::min<size_t>(chunk, tokens.size() - first);
    const ModelDriver::Piece piece = {sequence, tokens.subspan(first, count)};
    std::ranges::move(stepper.Step({&piece, 1}), std::back_inserter(all));
  }
  return all;
}

// Every axis and every pair of them: the whole product, on one prompt.
std::vector<DriverOptions> EverySetting(const std::string& folder,
                                        CacheDtype cache, Numerics numerics) {
  std::vector<WeightStorage> storages = {WeightStorage::kAsStored};
  // fast_bf16 refuses it.
  if (numerics != Numerics::kFastBf16) storages.push_back(WeightStorage::kF32);
  std::vector<DriverOptions> settings;
  for (const VectorIsa isa : SupportedVectorIsas()) {
    for (const int threads : {1, 2}) {
      for (const WeightStorage weights : storages) {
        settings.push_back({.load = {.folder = folder,
                                     .weights = weights,
                                     .cache_dtype = cache,
                                     .numerics = numerics},
                            .isa = isa,
                            .num_threads = threads});
      }
    }
  }
  return settings;
}

void CompareEverySetting(const std::string& folder, Numerics numerics) {
  std::mt19937 random(1);
  const std::vector<uint32_t> tokens = RandomTokens(&random, 100, 160);
  for (const CacheDtype cache : {CacheDtype::kF32, CacheDtype::kBf16}) {
    AllLogits base;
    for (const DriverOptions& setting : EverySetting(folder, cache, numerics)) {
      const auto driver = Load(setting);
      ASSERT_NE(driver, nullptr);
      for (const int chunk : kChunks) {
        const AllLogits logits = Alone(driver.get(), tokens, chunk);
        if (base.empty()) base = logits;
        EXPECT_EQ(FirstDifference(logits, base), -1)
            << VectorIsaName(setting.isa) << " threads " << setting.num_threads
            << " chunk " << chunk << " bf16 cache "
            << (cache == CacheDtype::kBf16) << " widened weights "
            << (setting.load.weights == WeightStorage::kF32);
      }
    }
    EXPECT_TRUE(
        std::ranges::all_of(base.back(), [](float x) { return x - x == 0; }));
  }
}

class RowInvarianceTest : public testing::TestWithParam<Numerics> {};

TEST_P(RowInvarianceTest, EverySettingOfV3) {
  CompareEverySetting(WriteSmallModel(SmallV3Config()), GetParam());
}

TEST_P(RowInvarianceTest, EverySettingOfV2WithOddSizes) {
  nlohmann::json config = SmallV2Config();
  config.merge_patch(nlohmann::json::parse(
      R"({"hidden_size": 100, "q_lora_rank": null, "kv_lora_rank": 37,
          "qk_nope_head_dim": 20, "qk_rope_head_dim": 6, "v_head_dim": 24,
          "num_attention_heads": 3, "num_key_value_heads": 3,
          "moe_intermediate_size": 19})"));
  CompareEverySetting(WriteSmallModel(config), GetParam());
}

TEST(RowBitsTest, TheCacheDtypeChangesThem) {
  const std::string folder = WriteSmallModel(SmallV3Config());
  std::mt19937 random(1);
  const std::vector<uint32_t> tokens = RandomTokens(&random, 20, 160);
  AllLogits results[2];
  for (const CacheDtype cache : {CacheDtype::kF32, CacheDtype::kBf16}) {
    const auto driver =
        Load({.load = {.folder = folder, .cache_dtype = cache}});
    ASSERT_NE(driver, nullptr);
    results[cache == CacheDtype::kBf16] = Alone(driver.get(), tokens, kWhole);
  }
  EXPECT_NE(FirstDifference(results[0], results[1]), -1);
}

// Advances every sequence to its end by pieces of random sizes in random order;
// the logits of each.
std::vector<AllLogits> RunMixed(
    ModelDriver* driver, const std::vector<std::vector<uint32_t>>& tokens,
    std::mt19937* random) {
  Stepper stepper(driver);
  std::vector<std::span<const uint32_t>> left(tokens.begin(), tokens.end());
  for (const auto& of_sequence : tokens) {
    stepper.NewSequence(PromptOf(of_sequence));
  }
  std::vector<AllLogits> mixed(tokens.size());
  while (!std::ranges::all_of(left, [](auto t) { return t.empty(); })) {
    std::vector<ModelDriver::Piece> pieces;
    size_t rows = 0;
    for (size_t s = 0; s < tokens.size(); ++s) {
      const size_t want =
          (*random)() % 3 == 0 ? (*random)() % 40 : (*random)() % 2;
      const size_t take = std::min({left[s].size(), want, kMaxRows - rows});
      if (take == 0) continue;
      pieces.push_back({static_cast<int>(s), left[s].first(take)});
      left[s] = left[s].subspan(take);
      rows += take;
    }
    std::ranges::shuffle(pieces, *random);
    AllLogits logits = stepper.Step(pieces);
    size_t row = 0;
    for (const ModelDriver::Piece& piece : pieces) {
      for (size_t i = 0; i < piece.token_ids.size(); ++i) {
        mixed[piece.sequence].push_back(std::move(logits[row++]));
      }
    }
  }
  return mixed;
}

void CompareBatchMixes(const DriverOptions& options, int rounds) {
  const auto driver = Load(options);
  ASSERT_NE(driver, nullptr);
  for (int round = 0; round < rounds; ++round) {
    std::mt19937 random(round);
    std::vector<std::vector<uint32_t>> tokens(1 + random() % 32);
    std::vector<AllLogits> alone;
    for (std::vector<uint32_t>& of_sequence : tokens) {
      of_sequence = RandomTokens(&random, 1 + static_cast<int>(random() % 100),
                                 driver->info().vocab_size);
      alone.push_back(Alone(driver.get(), of_sequence, kWhole));
    }
    const std::vector<AllLogits> mixed =
        RunMixed(driver.get(), tokens, &random);
    for (size_t s = 0; s < tokens.size(); ++s) {
      EXPECT_EQ(FirstDifference(mixed[s], alone[s]), -1)
          << "round " << round << " sequence " << s;
    }
  }
}

TEST_P(RowInvarianceTest, AnyBatchMix) {
  const std::string folder = WriteSmallModel(SmallV3Config());
  for (const CacheDtype cache : {CacheDtype::kF32, CacheDtype::kBf16}) {
    CompareBatchMixes({.load = {.folder = folder,
                                .cache_dtype = cache,
                                .numerics = GetParam()},
                       .isa = SupportedVectorIsas().back(),
                       .num_threads = 2},
                      6);
  }
}

TEST_P(RowInvarianceTest, AnyBatchMixOfTheTrainedModel) {
  CompareBatchMixes({.load = {.folder = "models/tiny-deepseek-v3",
                              .cache_dtype = CacheDtype::kBf16,
                              .numerics = GetParam()},
                     .isa = SupportedVectorIsas().back()},
                    2);
}

INSTANTIATE_TEST_SUITE_P(Numerics, RowInvarianceTest,
                         testing::Values(Numerics::kExact, Numerics::kFast,
                                         Numerics::kFastBf16),
                         [](const auto& test) {
                           return std::string(NumericsName(test.param));
                         });

// Else the tests of fast numerics would be those of exact ones again.
TEST(RowBitsTest, FastNumericsChangeThemBelowThePromptsEnd) {
  const std::string folder = WriteSmallModel(SmallV3Config());
  std::mt19937 random(1);
  const std::vector<uint32_t> tokens = RandomTokens(&random, 20, 160);
  const auto exact = Load({.load = {.folder = folder}});
  const auto fast =
      Load({.load = {.folder = folder, .numerics = Numerics::kFast}});
  ASSERT_NE(exact, nullptr);
  ASSERT_NE(fast, nullptr);
  const auto logits = [&tokens](ModelDriver& driver, int prompt_tokens) {
    driver.Reset();
    return driver.Prefill(driver.NewSequence(prompt_tokens), tokens, kWhole);
  };
  const AllLogits absorbed = logits(*exact, 20);
  EXPECT_EQ(FirstDifference(logits(*fast, 0), absorbed), -1);
  const AllLogits expanded = logits(*fast, 20);
  EXPECT_NE(FirstDifference(expanded, absorbed), -1);
  // What lies behind a prompt has another form, and reads the same cache.
  EXPECT_EQ(FirstDifference(logits(*fast, 19), expanded), 19);
}

}  // namespace
}  // namespace baton
