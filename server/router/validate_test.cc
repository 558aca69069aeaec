#include "server/router/validate.h"

#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "base/field_error.h"
#include "google/protobuf/stubs/logging.h"
#include "gtest/gtest.h"
#include "proto/baton/v1/inference.pb.h"

namespace baton {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kDenormal = std::numeric_limits<float>::denorm_min();
constexpr float kMaxFloat = std::numeric_limits<float>::max();

ModelBounds Model() {
  ModelBounds model;
  model.vocab_size = 100;
  model.max_context_tokens = 32;
  model.longest_token_bytes = 8;
  model.sampling_defaults = {.temperature = 0.7f,
                             .top_p = 0.95f,
                             .min_p = 0.25f,
                             .top_k = 3,
                             .seed = std::nullopt};
  model.eos_token_ids = {1, 2};
  return model;
}

v1::GenerateRequest Request(int num_tokens = 3) {
  v1::GenerateRequest request;
  for (int i = 0; i < num_tokens; ++i) {
    request.mutable_prompt()->mutable_token_ids()->add_ids(50);
  }
  return request;
}

// All that a request's checks say, its prompt's ids taken as they are.
absl::StatusOr<GenerationPlan> Check(const v1::GenerateRequest& request) {
  const absl::Status status = ValidateGenerateRequest(request, Model());
  if (!status.ok()) return status;
  const auto& ids = request.prompt().token_ids().ids();
  return MakePlan(request, {ids.begin(), ids.end()}, Model());
}

// One change to a request, and the field it spoils; null: none.
struct Change {
  const char* bad_field;
  std::function<void(v1::GenerateRequest*)> apply;
};

void SetStopStrings(int count, size_t bytes, v1::GenerateRequest* request) {
  request->mutable_stopping()->clear_stop_strings();
  for (int i = 0; i < count; ++i) {
    request->mutable_stopping()->add_stop_strings(std::string(bytes, 's'));
  }
}

void SetStopIds(int count, uint32_t id, v1::GenerateRequest* request) {
  request->mutable_stopping()->clear_stop_token_ids();
  for (int i = 0; i < count; ++i) {
    request->mutable_stopping()->add_stop_token_ids(id);
  }
}

void AddFloatChanges(std::vector<Change>* changes) {
  const auto add = [changes](const char* field, bool ok, float value,
                             void (v1::SamplingParams::*set)(float)) {
    changes->push_back(
        {ok ? nullptr : field, [value, set](v1::GenerateRequest* request) {
           (request->mutable_sampling()->*set)(value);
         }});
  };
  const float values[] = {0.0f,
                          -0.0f,
                          0.5f,
                          1.0f,
                          1.0001f,
                          2.0f,
                          100.0f,
                          101,
                          -1.0f,
                          1e-30f,
                          std::nextafter(1e-30f, 0.0f),
                          1.2e-38f,
                          kInf,
                          -kInf,
                          kNan,
                          kDenormal,
                          -kDenormal,
                          kMaxFloat,
                          -kMaxFloat};
  for (float value : values) {
    const bool is_normal = std::isnormal(value);
    add("sampling.temperature", value == 0 || (value >= 1e-30f && value <= 100),
        value, &v1::SamplingParams::set_temperature);
    add("sampling.top_p", is_normal && value > 0 && value <= 1, value,
        &v1::SamplingParams::set_top_p);
    add("sampling.min_p", value == 0 || (is_normal && value > 0 && value <= 1),
        value, &v1::SamplingParams::set_min_p);
  }
}

void AddIntegerChanges(std::vector<Change>* changes) {
  for (uint32_t value : {0u, 1u, 100u, 0x7fffffffu, 0x80000000u, UINT32_MAX}) {
    changes->push_back({value <= 0x7fffffff ? nullptr : "sampling.top_k",
                        [value](v1::GenerateRequest* request) {
                          request->mutable_sampling()->set_top_k(value);
                        }});
  }
  for (uint32_t value : {0u, 1u, 31u, 32u, 33u, 0x80000000u, UINT32_MAX}) {
    changes->push_back(
        {value >= 1 && value <= 32 ? nullptr : "stopping.max_tokens",
         [value](v1::GenerateRequest* request) {
           request->mutable_stopping()->set_max_tokens(value);
         }});
  }
  for (uint64_t seed : {uint64_t{0}, UINT64_MAX}) {
    changes->push_back({nullptr, [seed](v1::GenerateRequest* request) {
                          request->mutable_sampling()->set_seed(seed);
                        }});
  }
}

void AddStopChanges(std::vector<Change>* changes) {
  for (const auto& [count, bytes, field] :
       std::vector<std::tuple<int, size_t, const char*>>{
           {16, 256, nullptr},
           {17, 1, "stopping.stop_strings"},
           {1, 257, "stopping.stop_strings[0]"},
           {16, 0, "stopping.stop_strings[0]"},
           {5000, 1, "stopping.stop_strings"}}) {
    changes->push_back(
        {field, [count = count, bytes = bytes](v1::GenerateRequest* request) {
           SetStopStrings(count, bytes, request);
         }});
  }
  for (const auto& [count, id, field] :
       std::vector<std::tuple<int, uint32_t, const char*>>{
           {64, 99, nullptr},
           {65, 99, "stopping.stop_token_ids"},
           {1, 100, "stopping.stop_token_ids[0]"},
           {64, 0x80000000u, "stopping.stop_token_ids[0]"},
           {2, UINT32_MAX, "stopping.stop_token_ids[0]"}}) {
    changes->push_back(
        {field, [count = count, id = id](v1::GenerateRequest* request) {
           SetStopIds(count, id, request);
         }});
  }
  for (const bool ignore_eos : {true, false}) {
    changes->push_back({nullptr, [ignore_eos](v1::GenerateRequest* request) {
                          request->mutable_stopping()->set_ignore_eos(
                              ignore_eos);
                        }});
  }
}

void AddPromptChanges(std::vector<Change>* changes) {
  for (const auto& [length, ok] : std::vector<std::pair<int, bool>>{
           {1, true}, {31, true}, {32, false}, {33, false}, {320, false}}) {
    changes->push_back({ok ? nullptr : "prompt",
                        [length = length](v1::GenerateRequest* request) {
                          *request->mutable_prompt() = Request(length).prompt();
                        }});
  }
  for (const uint32_t id : {100u, 0x80000000u, UINT32_MAX}) {
    changes->push_back(
        {"prompt.token_ids.ids[1]", [id](v1::GenerateRequest* request) {
           *request->mutable_prompt() = Request(3).prompt();
           request->mutable_prompt()->mutable_token_ids()->set_ids(1, id);
         }});
  }
  changes->push_back({"prompt", [](v1::GenerateRequest* request) {
                        request->clear_prompt();
                      }});
  changes->push_back(
      {"prompt", [](v1::GenerateRequest* request) {
         request->mutable_prompt()->mutable_token_ids()->clear_ids();
       }});
  changes->push_back({"prompt.text.text", [](v1::GenerateRequest* request) {
                        request->mutable_prompt()->mutable_text()->set_text(
                            std::string(32 * 8 + 1, 't'));
                      }});
  for (const size_t bytes : {0, 128, 129, 100'000}) {
    changes->push_back({bytes <= 128 ? nullptr : "client_request_id",
                        [bytes](v1::GenerateRequest* request) {
                          request->set_client_request_id(
                              std::string(bytes, 'i'));
                        }});
  }
}

std::vector<Change> AllChanges() {
  std::vector<Change> changes;
  AddFloatChanges(&changes);
  AddIntegerChanges(&changes);
  AddStopChanges(&changes);
  AddPromptChanges(&changes);
  return changes;
}

TEST(ValidateTest, DecidesEachFieldAloneAndNamesIt) {
  for (const Change& change : AllChanges()) {
    v1::GenerateRequest request = Request();
    change.apply(&request);
    const absl::StatusOr<GenerationPlan> plan = Check(request);
    SCOPED_TRACE(request.ShortDebugString().substr(0, 300));
    EXPECT_EQ(plan.ok(), change.bad_field == nullptr) << plan.status();
    if (change.bad_field != nullptr) {
      EXPECT_EQ(ErrorField(plan.status()), change.bad_field);
      EXPECT_LE(plan.status().message().size(), 300u);
    }
  }
}

void ExpectInRange(const GenerationPlan& plan) {
  EXPECT_GE(plan.prompt_ids.size(), 1u);
  EXPECT_GE(plan.max_tokens, 1u);
  EXPECT_LE(plan.prompt_ids.size() + plan.max_tokens, 32u);
  EXPECT_FALSE(std::signbit(plan.sampling.temperature));
  EXPECT_LE(plan.sampling.temperature, 100);
  EXPECT_GT(plan.sampling.top_p, 0);
  EXPECT_LE(plan.sampling.top_p, 1);
  EXPECT_GE(plan.sampling.min_p, 0);
  EXPECT_LE(plan.sampling.min_p, 1);
  EXPECT_LE(plan.sampling.top_k, 0x7fffffffu);
  EXPECT_LE(plan.stop_strings.size(), 16u);
  EXPECT_LE(plan.stop_token_ids.size(), 66u);
  EXPECT_LE(plan.num_eos_token_ids, plan.stop_token_ids.size());
  EXPECT_EQ(
      std::set<uint32_t>(plan.stop_token_ids.begin(), plan.stop_token_ids.end())
          .size(),
      plan.stop_token_ids.size());
}

// A later change may undo an earlier one's harm, so an error must name a field
// that some change spoiled, and a request with no bad change must pass.
TEST(ValidateTest, DecidesAHundredThousandMixturesOfFields) {
  const std::vector<Change> changes = AllChanges();
  std::mt19937_64 random(20251129);
  int num_ok = 0;
  for (int i = 0; i < 100'000 && !HasFailure(); ++i) {
    v1::GenerateRequest request = Request();
    std::set<std::string> bad_fields;
    const uint64_t num_changes = random() % 5;
    for (uint64_t c = 0; c < num_changes; ++c) {
      const Change& change = changes[random() % changes.size()];
      change.apply(&request);
      if (change.bad_field != nullptr) bad_fields.insert(change.bad_field);
    }
    const absl::StatusOr<GenerationPlan> plan = Check(request);
    if (plan.ok()) {
      ++num_ok;
      ExpectInRange(*plan);
      continue;
    }
    EXPECT_EQ(plan.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_TRUE(bad_fields.contains(ErrorField(plan.status()).value_or("none")))
        << plan.status() << " " << request.ShortDebugString().substr(0, 500);
  }
  EXPECT_GT(num_ok, 20'000);
  EXPECT_LT(num_ok, 80'000);
}

// What protobuf accepts from the wire, whatever it is, is decided by a status.
TEST(ValidateTest, SurvivesMutatedBytes) {
  const std::vector<Change> changes = AllChanges();
  std::mt19937_64 random(1);
  int num_parsed = 0;
  // Invalid UTF-8 is logged, line after line.
  google::protobuf::SetLogHandler(nullptr);
  for (int i = 0; i < 20'000 && !HasFailure(); ++i) {
    v1::GenerateRequest request = Request();
    changes[random() % changes.size()].apply(&request);
    std::string bytes = request.SerializeAsString();
    if (bytes.size() > 1000 || bytes.empty()) continue;
    for (uint64_t m = 0; m <= random() % 3; ++m) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    v1::GenerateRequest mutated;
    if (!mutated.ParseFromString(bytes)) continue;
    ++num_parsed;
    const absl::StatusOr<GenerationPlan> plan = Check(mutated);
    if (plan.ok()) {
      ExpectInRange(*plan);
    } else {
      EXPECT_TRUE(ErrorField(plan.status()).has_value()) << plan.status();
    }
  }
  EXPECT_GT(num_parsed, 5'000);
}

TEST(ValidateTest, FillsWhatIsAbsentFromTheModelsDefaults) {
  const absl::StatusOr<GenerationPlan> plan = Check(Request(3));
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->sampling.temperature, 0.7f);
  EXPECT_EQ(plan->sampling.top_p, 0.95f);
  EXPECT_EQ(plan->sampling.min_p, 0.25f);
  EXPECT_EQ(plan->sampling.top_k, 3u);
  EXPECT_EQ(plan->sampling.seed, std::nullopt);
  EXPECT_EQ(plan->max_tokens, 29u) << "the context's room";
  EXPECT_EQ(plan->stop_token_ids, (std::vector<uint32_t>{1, 2}));
  EXPECT_EQ(plan->num_eos_token_ids, 2u);
}

TEST(ValidateTest, TakesZeroAsAValueNotAsAbsent) {
  v1::GenerateRequest request = Request();
  request.mutable_sampling()->set_temperature(0);
  request.mutable_sampling()->set_top_k(0);
  request.mutable_sampling()->set_min_p(0);
  request.mutable_sampling()->set_seed(0);
  const absl::StatusOr<GenerationPlan> plan = Check(request);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->sampling.temperature, 0);
  EXPECT_EQ(plan->sampling.top_k, 0u);
  EXPECT_EQ(plan->sampling.min_p, 0);
  EXPECT_EQ(plan->sampling.seed, 0u);
}

TEST(ValidateTest, CutsMaxTokensToTheContextsRoom) {
  v1::GenerateRequest request = Request(30);
  request.mutable_stopping()->set_max_tokens(32);
  EXPECT_EQ(Check(request)->max_tokens, 2u);
}

TEST(ValidateTest, PutsEosFirstAndNoIdTwice) {
  v1::GenerateRequest request = Request();
  for (uint32_t id : {9, 2, 9, 7}) {
    request.mutable_stopping()->add_stop_token_ids(id);
  }
  EXPECT_EQ(Check(request)->stop_token_ids,
            (std::vector<uint32_t>{1, 2, 9, 7}));
  EXPECT_EQ(Check(request)->num_eos_token_ids, 2u);
  request.mutable_stopping()->set_ignore_eos(true);
  EXPECT_EQ(Check(request)->stop_token_ids, (std::vector<uint32_t>{9, 2, 7}));
  EXPECT_EQ(Check(request)->num_eos_token_ids, 0u);
}

TEST(ValidateTest, ChecksChatMessages) {
  v1::GenerateRequest request;
  v1::ChatPrompt* const chat = request.mutable_prompt()->mutable_chat();
  const auto field = [&request] {
    return ErrorField(ValidateGenerateRequest(request, Model()));
  };
  EXPECT_EQ(field(), "prompt.chat.messages");
  for (const char* role : {"system", "user", "assistant", "tool"}) {
    chat->add_messages()->set_role(role);
  }
  EXPECT_EQ(field(), std::nullopt);
  chat->add_messages()->set_role("User");
  EXPECT_EQ(field(), "prompt.chat.messages[4].role");
  chat->mutable_messages(4)->set_role("user");
  chat->mutable_messages(4)->set_content(std::string(32 * 8 + 1, 'c'));
  EXPECT_EQ(field(), "prompt.chat.messages");
  chat->mutable_messages(4)->clear_content();
  while (chat->messages_size() < 32) chat->add_messages()->set_role("user");
  EXPECT_EQ(field(), "prompt.chat.messages") << "a message is a token at least";
}

TEST(ValidateTest, BoundsChatMessagesWhateverTheContext) {
  ModelBounds model = Model();
  model.max_context_tokens = 1'000'000;
  v1::Prompt prompt;
  while (prompt.chat().messages_size() < kMaxChatMessages) {
    prompt.mutable_chat()->add_messages()->set_role("user");
  }
  EXPECT_TRUE(ValidatePrompt(prompt, model).ok());
  prompt.mutable_chat()->add_messages()->set_role("user");
  EXPECT_EQ(ErrorField(ValidatePrompt(prompt, model)), "prompt.chat.messages");
}

TEST(ValidateTest, RefusesTextWhoseTokensLeaveNoRoom) {
  v1::GenerateRequest request;
  request.mutable_prompt()->mutable_text()->set_text("text");
  ASSERT_TRUE(ValidateGenerateRequest(request, Model()).ok());
  for (const auto& [length, ok] : std::vector<std::pair<size_t, bool>>{
           {0, false}, {1, true}, {31, true}, {32, false}, {33, false}}) {
    const auto plan =
        MakePlan(request, std::vector<uint32_t>(length, 5), Model());
    EXPECT_EQ(plan.ok(), ok) << length;
    if (!ok) {
      EXPECT_EQ(ErrorField(plan.status()), "prompt");
    }
  }
}

}  // namespace
}  // namespace baton
