#include "engine/model/deepseek_v3_runner.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "engine/model/testing/model_driver.h"
#include "engine/model/testing/random_model.h"

namespace baton {
namespace {

using nlohmann::json;

std::string SmallModel() {
  std::string folder = FreshTestFolder();
  WriteModel(folder, SmallV3Config(),
             RandomTensors(SmallV3Config(), 1, TensorDtype::kBf16));
  return folder;
}

absl::StatusOr<std::unique_ptr<DeepSeekV3Runner>> Load(
    const LoadOptions& options) {
  return DeepSeekV3Runner::Load(options, CpuContext());
}

std::string Fingerprint(const LoadOptions& options) {
  const auto runner = Load(options);
  EXPECT_TRUE(runner.ok()) << runner.status();
  return runner.ok() ? (*runner)->info().fingerprint : "";
}

TEST(DeepSeekV3RunnerTest, TellsWhatTheEngineNeeds) {
  const auto runner =
      Load({.folder = SmallModel(), .cache_dtype = CacheDtype::kBf16});
  ASSERT_TRUE(runner.ok()) << runner.status();
  const ModelRunnerInfo& info = (*runner)->info();
  EXPECT_EQ(info.vocab_size, 160);
  EXPECT_EQ(info.max_context_tokens, 256);
  ASSERT_EQ(info.cache.groups.size(), 1);
  EXPECT_EQ(info.cache.groups[0].name, "latent");
  EXPECT_EQ(info.cache.groups[0].bytes_per_token, 3 * (32 + 16) * 2);
  EXPECT_EQ(info.cache.block_bytes(), 64 * 3 * (32 + 16) * 2);
  EXPECT_EQ(info.cache.state_bytes_per_sequence, 0);
  EXPECT_EQ(info.hidden_size, 64);
  EXPECT_FALSE(info.has_drafter);
  EXPECT_EQ(info.fingerprint.size(), 32);
}

TEST(DeepSeekV3RunnerTest, ADrafterHasACacheGroupOfItsOwn) {
  const auto runner = Load({.folder = SmallModel(),
                            .cache_dtype = CacheDtype::kBf16,
                            .drafter = true});
  ASSERT_TRUE(runner.ok()) << runner.status();
  const ModelRunnerInfo& info = (*runner)->info();
  EXPECT_TRUE(info.has_drafter);
  ASSERT_EQ(info.cache.groups.size(), 2);
  EXPECT_EQ(info.cache.groups[0].name, "latent");
  EXPECT_EQ(info.cache.groups[0].bytes_per_token, 3 * (32 + 16) * 2);
  EXPECT_EQ(info.cache.groups[1].name, "drafter");
  EXPECT_EQ(info.cache.groups[1].bytes_per_token, (32 + 16) * 2);
  EXPECT_EQ(info.cache.tail_offset_bytes(), 64 * 4 * (32 + 16) * 2);
  EXPECT_EQ(info.cache.block_bytes(), 64 * 4 * (32 + 16) * 2 + 64 * 4);
}

TEST(DeepSeekV3RunnerTest, NamesWhatADrafterLacks) {
  const std::string folder = FreshTestFolder();
  json config = SmallV3Config();
  std::vector<TensorToWrite> tensors =
      RandomTensors(config, 1, TensorDtype::kBf16);
  std::erase_if(tensors, [](const TensorToWrite& tensor) {
    return tensor.name.starts_with("model.layers.3.");
  });
  WriteModel(folder, config, tensors);
  EXPECT_TRUE(Load({.folder = folder}).ok());
  const absl::Status no_tensors =
      Load({.folder = folder, .drafter = true}).status();
  EXPECT_EQ(no_tensors.code(), absl::StatusCode::kNotFound);
  EXPECT_NE(no_tensors.message().find("model.layers.3.enorm.weight"),
            std::string::npos)
      << no_tensors;
  config["num_nextn_predict_layers"] = 0;
  WriteModel(folder, config, tensors);
  EXPECT_TRUE(Load({.folder = folder}).ok());
  const absl::Status no_layer =
      Load({.folder = folder, .drafter = true}).status();
  EXPECT_EQ(no_layer.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(no_layer.message().find("config.json: num_nextn_predict_layers"),
            std::string::npos)
      << no_layer;
}

TEST(DeepSeekV3RunnerTest, RefusesOptionsOutOfRange) {
  const std::string folder = SmallModel();
  const LoadOptions kBad[] = {
      {.folder = folder, .max_rows = 0},
      {.folder = folder, .max_rows = 65537},
      {.folder = folder, .max_logits_rows = 0},
      {.folder = folder, .max_rows = 4, .max_logits_rows = 5},
      {.folder = folder, .max_context_tokens = -1},
      {.folder = folder, .max_context_tokens = 257},
  };
  for (const LoadOptions& options : kBad) {
    EXPECT_EQ(Load(options).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
  const auto runner = Load({.folder = folder, .max_context_tokens = 256});
  ASSERT_TRUE(runner.ok()) << runner.status();
  EXPECT_EQ((*runner)->info().max_context_tokens, 256);
}

TEST(DeepSeekV3RunnerTest, NamesWhatIsMissing) {
  const std::string folder = FreshTestFolder();
  EXPECT_EQ(Load({.folder = folder}).status().code(),
            absl::StatusCode::kNotFound);
  WriteTextFile(folder + "/config.json", SmallV3Config().dump());
  const absl::Status status = Load({.folder = folder}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_NE(status.message().find("model.safetensors"), std::string::npos);
}

TEST(DeepSeekV3RunnerTest, CheckRefusesWhatLoadRefuses) {
  const auto refused = [](const LoadOptions& options) {
    const absl::Status status = LoadedDeepSeekV3::Check(options);
    EXPECT_EQ(status, Load(options).status());
    return !status.ok();
  };
  const std::string folder = SmallModel();
  EXPECT_FALSE(refused({.folder = folder}));
  EXPECT_TRUE(refused({.folder = folder, .max_context_tokens = 257}));
  EXPECT_TRUE(refused({.folder = "no-such-folder"}));
  const std::string file = folder + "/model.safetensors";
  std::filesystem::resize_file(file, std::filesystem::file_size(file) - 1);
  EXPECT_TRUE(refused({.folder = folder}));
  std::vector<TensorToWrite> tensors =
      RandomTensors(SmallV3Config(), 1, TensorDtype::kBf16);
  tensors.erase(tensors.begin());
  WriteModel(folder, SmallV3Config(), tensors);
  EXPECT_TRUE(refused({.folder = folder}));
  WriteTextFile(folder + "/config.json", "{}");
  EXPECT_TRUE(refused({.folder = folder}));
}

TEST(DeepSeekV3RunnerTest, RefusesEveryTruncationOfConfig) {
  const std::string folder = SmallModel();
  const std::string text = SmallV3Config().dump(1);
  for (size_t size = 0; size < text.size(); ++size) {
    WriteTextFile(folder + "/config.json", text.substr(0, size));
    const absl::Status status = Load({.folder = folder}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << size;
    EXPECT_NE(status.message().find("config.json"), std::string::npos);
  }
}

TEST(DeepSeekV3RunnerTest, FingerprintFollowsWhatDecidesTheBits) {
  const std::string folder = SmallModel();
  const std::string base = Fingerprint({.folder = folder});
  EXPECT_EQ(Fingerprint({.folder = folder, .weights = WeightStorage::kF32}),
            base);
  EXPECT_EQ(
      Fingerprint({.folder = folder, .max_rows = 7, .max_logits_rows = 7}),
      base);
  std::set<std::string> fingerprints = {base};
  const auto is_new = [&](const LoadOptions& options) {
    return fingerprints.insert(Fingerprint(options)).second;
  };
  EXPECT_TRUE(is_new({.folder = folder, .cache_dtype = CacheDtype::kF32}));
  EXPECT_TRUE(is_new({.folder = folder, .numerics = Numerics::kFast}));
  EXPECT_TRUE(is_new({.folder = folder, .numerics = Numerics::kFastBf16}));
  EXPECT_TRUE(is_new({.folder = folder, .drafter = true}));
  WriteModel(folder, SmallV3Config(),
             RandomTensors(SmallV3Config(), 2, TensorDtype::kBf16));
  EXPECT_TRUE(is_new({.folder = folder}));
  WriteModel(folder, SmallV3Config(),
             RandomTensors(SmallV3Config(), 1, TensorDtype::kF32));
  EXPECT_TRUE(is_new({.folder = folder}));
  json config = SmallV3Config();
  config["rope_theta"] = 10001;
  WriteModel(folder, config,
             RandomTensors(SmallV3Config(), 1, TensorDtype::kBf16));
  EXPECT_TRUE(is_new({.folder = folder}));
}

TEST(DeepSeekV3RunnerTest, GivesLogitsOfTheWantedRowsAlone) {
  const auto driver = ModelDriver::Create(
      {.load = {
           .folder = SmallModel(), .max_rows = 16, .max_logits_rows = 16}});
  ASSERT_TRUE(driver.ok()) << driver.status();
  const std::vector<uint32_t> a = {1, 2, 3, 4, 5};
  const std::vector<uint32_t> b = {6, 7, 8};
  const auto step = [&](auto... logits_rows) {
    (*driver)->Reset();
    const int first = (*driver)->NewSequence();
    const int second = (*driver)->NewSequence();
    const std::vector<ModelDriver::Piece> pieces = {{first, a}, {second, b}};
    return (*driver)->Step(pieces, logits_rows...);
  };
  const auto all = step();
  ASSERT_EQ(all.size(), 8);
  const std::vector<int32_t> rows = {7, 4, 0, 4};
  const auto wanted = step(std::span<const int32_t>(rows));
  ASSERT_EQ(wanted.size(), 4);
  for (size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(wanted[i], all[rows[i]]);
  EXPECT_TRUE(step(std::span<const int32_t>()).empty());
}

std::unique_ptr<ModelDriver> SmallDriver() {
  auto driver = ModelDriver::Create({.load = {.folder = SmallModel(),
                                              .max_rows = 16,
                                              .max_logits_rows = 16,
                                              .drafter = true}});
  EXPECT_TRUE(driver.ok()) << driver.status();
  return driver.ok() ? *std::move(driver) : nullptr;
}

constexpr uint32_t kNineTokens[] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
constexpr int32_t kSomeRows[] = {7, 0, 7};

TEST(DeepSeekV3RunnerTest, HiddenStatesOnRequestChangeNoLogits) {
  const auto driver = SmallDriver();
  ASSERT_NE(driver, nullptr);
  const ModelDriver::Piece one = {driver->NewSequence(), kNineTokens};
  const auto without = driver->Step({&one, 1}, kSomeRows);
  const ModelDriver::Piece two = {driver->NewSequence(), kNineTokens};
  const ModelDriver::Output with = driver->StepWithHidden({&two, 1}, kSomeRows);
  EXPECT_EQ(with.logits, without);
  EXPECT_EQ(with.hidden.size(), 9 * 64);
  const ModelDriver::Piece three = {driver->NewSequence(), kNineTokens};
  EXPECT_EQ(driver->StepWithHidden({&three, 1}, {}).hidden, with.hidden);

  const auto draft = [&](const ModelDriver::Piece& piece) {
    return ModelDriver::Piece{piece.sequence, kNineTokens, 1};
  };
  const ModelDriver::Piece four = draft(one);
  const auto drafted_without =
      driver->DraftLogits({&four, 1}, with.hidden, kSomeRows);
  const ModelDriver::Piece five = draft(two);
  const ModelDriver::Output drafted =
      driver->Draft({&five, 1}, with.hidden, kSomeRows);
  EXPECT_EQ(drafted.logits, drafted_without);
  EXPECT_EQ(drafted.hidden.size(), 9 * 64);
  EXPECT_NE(drafted.logits[1], without[1]);
}

// Of a last layer's rows, those that nobody reads reach no expert.
TEST(DeepSeekV3RunnerTest, EveryCallAddsItsRowsToTheirExperts) {
  const auto driver = SmallDriver();
  ASSERT_NE(driver, nullptr);
  const auto rows_by_layer = [&] {
    const size_t experts = driver->info().num_experts;
    std::vector<uint32_t> rows(driver->info().num_expert_layers);
    for (size_t i = 0; i < driver->expert_rows().size(); ++i) {
      rows[i / experts] += driver->expert_rows()[i];
    }
    return rows;
  };
  const uint32_t top_k = SmallV3Config()["num_experts_per_tok"];
  const ModelDriver::Piece tokens = {driver->NewSequence(), kNineTokens};
  driver->Step({&tokens, 1}, kSomeRows);
  EXPECT_EQ(rows_by_layer(), (std::vector<uint32_t>{9 * top_k, 3 * top_k, 0}));
  const std::vector<float> hidden =
      driver->StepWithHidden({&tokens, 1}, kSomeRows).hidden;
  EXPECT_EQ(rows_by_layer(),
            (std::vector<uint32_t>{18 * top_k, 12 * top_k, 0}));
  const ModelDriver::Piece ahead = {tokens.sequence, kNineTokens, 1};
  driver->Draft({&ahead, 1}, hidden, kSomeRows);
  EXPECT_EQ(rows_by_layer().back(), 9 * top_k);
  driver->DraftLogits({&ahead, 1}, hidden, kSomeRows);
  EXPECT_EQ(rows_by_layer(),
            (std::vector<uint32_t>{18 * top_k, 12 * top_k, 12 * top_k}));
}

// A chain writes slots ahead; the rows that come to stand there replace them.
TEST(DeepSeekV3RunnerTest, ProvisionalRowsLeaveNoTrace) {
  const auto driver = SmallDriver();
  ASSERT_NE(driver, nullptr);
  std::vector<ModelDriver::Output> results;
  for (const bool chains : {false, true}) {
    const int sequence = driver->NewSequence();
    const ModelDriver::Piece tokens = {sequence, kNineTokens};
    const std::vector<float> hidden =
        driver->StepWithHidden({&tokens, 1}, {}).hidden;
    const std::span states(hidden);
    const auto at_slot = [&](int slot) {
      return ModelDriver::Piece{
          sequence, std::span(kNineTokens).subspan(slot, 9 - slot), slot};
    };
    ModelDriver::Piece first = at_slot(1);
    first.token_ids = first.token_ids.first(4);
    driver->Draft({&first, 1}, states.first(4 * 64), {});
    if (chains) {
      const ModelDriver::Piece ahead = {sequence,
                                        std::span(kNineTokens).first(5), 5};
      driver->Draft({&ahead, 1}, states.last(5 * 64), {});
    }
    const ModelDriver::Piece rest = at_slot(5);
    constexpr int32_t kRows[] = {0, 1, 2, 3};
    results.push_back(
        driver->Draft({&rest, 1}, states.subspan(4 * 64, 4 * 64), kRows));
  }
  EXPECT_EQ(results[0].logits, results[1].logits);
  EXPECT_EQ(results[0].hidden, results[1].hidden);
}

// After a step without any logits, the cache holds what later rows need.
TEST(DeepSeekV3RunnerTest, WritesTheCacheOfRowsWithoutLogits) {
  const auto driver = ModelDriver::Create(
      {.load = {
           .folder = SmallModel(), .max_rows = 16, .max_logits_rows = 16}});
  ASSERT_TRUE(driver.ok()) << driver.status();
  const std::vector<uint32_t> tokens = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  const auto expected =
      (*driver)->Prefill((*driver)->NewSequence(), tokens, 16);
  const int sequence = (*driver)->NewSequence();
  const ModelDriver::Piece most = {sequence, std::span(tokens).first(8)};
  (*driver)->Step(std::span(&most, 1), std::span<const int32_t>());
  const ModelDriver::Piece last = {sequence, std::span(tokens).last(1)};
  EXPECT_EQ((*driver)->Step(std::span(&last, 1)).back(), expected.back());
}

TEST(DeepSeekV3RunnerTest, AStepWithoutRowsDoesNothing) {
  const auto driver = ModelDriver::Create({.load = {.folder = SmallModel()}});
  ASSERT_TRUE(driver.ok()) << driver.status();
  EXPECT_TRUE((*driver)->Step({}).empty());
}

TEST(DeepSeekV3RunnerDeathTest, ABatchBeyondItsCapacityIsOurBug) {
  const auto driver = ModelDriver::Create(
      {.load = {.folder = SmallModel(), .max_rows = 4, .max_logits_rows = 2}});
  ASSERT_TRUE(driver.ok()) << driver.status();
  const std::vector<uint32_t> tokens = {1, 2, 3, 4, 5};
  const int sequence = (*driver)->NewSequence();
  EXPECT_DEATH((*driver)->Prefill(sequence, tokens, 5), "CHECK failed");
  EXPECT_DEATH((*driver)->Prefill(sequence, tokens, 3), "CHECK failed");
}

TEST(DeepSeekV3RunnerDeathTest, ADraftBeyondItsCapacityIsOurBug) {
  const auto driver = SmallDriver();
  ASSERT_NE(driver, nullptr);
  const std::vector<uint32_t> tokens(17);
  const std::vector<float> hidden(17 * 64);
  const ModelDriver::Piece piece = {driver->NewSequence(), tokens, 1};
  EXPECT_DEATH(driver->Draft({&piece, 1}, hidden, {}), "CHECK failed");
  const auto plain = ModelDriver::Create({.load = {.folder = SmallModel()}});
  ASSERT_TRUE(plain.ok()) << plain.status();
  const ModelDriver::Piece one = {
      (*plain)->NewSequence(), {tokens.data(), 1}, 1};
  EXPECT_DEATH((*plain)->Draft({&one, 1}, std::span(hidden).first(64), {}),
               "CHECK failed");
}

}  // namespace
}  // namespace baton
