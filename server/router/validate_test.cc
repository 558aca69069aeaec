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
#include "server/router/validate_for_test.h"

namespace baton {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kDenormal = std::numeric_limits<float>::denorm_min();
constexpr float kMaxFloat = std::numeric_limits<float>::max();

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
    add("sampling.repetition_penalty", value >= 0.01f && value <= 100, value,
        &v1::SamplingParams::set_repetition_penalty);
    const bool is_penalty =
        value == 0 || (is_normal && value >= -2 && value <= 2);
    add("sampling.presence_penalty", is_penalty, value,
        &v1::SamplingParams::set_presence_penalty);
    add("sampling.frequency_penalty", is_penalty, value,
        &v1::SamplingParams::set_frequency_penalty);
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
  for (uint32_t value : {0u, 1u, 2u, 128u, 129u, UINT32_MAX}) {
    changes->push_back({value >= 1 && value <= 128 ? nullptr : "sampling.n",
                        [value](v1::GenerateRequest* request) {
                          request->mutable_sampling()->set_n(value);
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

void SetBiases(int count, uint32_t first_id, float bias,
               v1::GenerateRequest* request) {
  request->mutable_sampling()->clear_logit_bias();
  for (int i = 0; i < count; ++i) {
    v1::LogitBias* entry = request->mutable_sampling()->add_logit_bias();
    entry->set_token_id(first_id + i);
    entry->set_bias(bias);
  }
}

void AddBiasChanges(std::vector<Change>* changes) {
  for (const auto& [count, first_id, bias, field] :
       std::vector<std::tuple<int, uint32_t, float, const char*>>{
           {100, 0, 100.0f, nullptr},
           {1, 99, -100.0f, nullptr},
           {101, 0, 1.0f, "sampling.logit_bias[100]"},
           {1, UINT32_MAX, 1.0f, "sampling.logit_bias[0]"},
           {2, 7, 100.1f, "sampling.logit_bias[0]"},
           {2, 7, -kInf, "sampling.logit_bias[0]"},
           {2, 7, kNan, "sampling.logit_bias[0]"},
           {2, 7, kDenormal, "sampling.logit_bias[0]"},
           {1025, 0, 1.0f, "sampling.logit_bias"},
           {5000, 0, 1.0f, "sampling.logit_bias"}}) {
    changes->push_back({field, [count = count, first_id = first_id,
                                bias = bias](v1::GenerateRequest* request) {
                          SetBiases(count, first_id, bias, request);
                        }});
  }
  changes->push_back(
      {"sampling.logit_bias", [](v1::GenerateRequest* request) {
         SetBiases(2, 7, 1, request);
         request->mutable_sampling()->mutable_logit_bias(1)->set_token_id(7);
       }});
}

void AddOutputChanges(std::vector<Change>* changes) {
  for (uint32_t value : {0u, 1u, 20u, 21u, 0x7fffffffu, UINT32_MAX}) {
    changes->push_back({value <= 20 ? nullptr : "logprobs.top",
                        [value](v1::GenerateRequest* request) {
                          request->mutable_logprobs()->set_top(value);
                        }});
    changes->push_back(
        {value >= 1 && value <= 1024 ? nullptr : "output.stream_interval",
         [value](v1::GenerateRequest* request) {
           request->mutable_output()->set_stream_interval(value);
         }});
  }
  for (uint32_t value : {0u, 3u, 31u, 32u, UINT32_MAX}) {
    changes->push_back({value == 0 ? nullptr : "logprobs.prompt_from",
                        [value](v1::GenerateRequest* request) {
                          request->mutable_logprobs()->set_prompt_from(value);
                        }});
  }
  for (uint32_t value : {33u, 0x80000000u, UINT32_MAX}) {
    changes->push_back(
        {"stopping.min_tokens", [value](v1::GenerateRequest* request) {
           request->mutable_stopping()->set_min_tokens(value);
         }});
  }
  changes->push_back({nullptr, [](v1::GenerateRequest* request) {
                        request->mutable_stopping()->set_min_tokens(1);
                        request->mutable_stopping()->set_include_stop_string(1);
                        request->mutable_output()->set_skip_special_tokens(0);
                        request->mutable_logprobs()->set_after_truncation(1);
                      }});
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
    changes->push_back({bytes <= 128 ? nullptr : "cache.salt",
                        [bytes](v1::GenerateRequest* request) {
                          request->mutable_cache()->set_salt(
                              std::string(bytes, 's'));
                        }});
  }
}

std::vector<Change> AllChanges() {
  std::vector<Change> changes;
  AddFloatChanges(&changes);
  AddIntegerChanges(&changes);
  AddBiasChanges(&changes);
  AddOutputChanges(&changes);
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

void ExpectInRange(const SamplingPlan& sampling) {
  EXPECT_FALSE(std::signbit(sampling.temperature));
  EXPECT_LE(sampling.temperature, 100);
  EXPECT_GT(sampling.top_p, 0);
  EXPECT_LE(sampling.top_p, 1);
  EXPECT_GE(sampling.min_p, 0);
  EXPECT_LE(sampling.min_p, 1);
  EXPECT_LE(sampling.top_k, 0x7fffffffu);
  EXPECT_GE(sampling.repetition_penalty, 0.01f);
  EXPECT_LE(sampling.repetition_penalty, 100);
  EXPECT_LE(std::abs(sampling.presence_penalty), 2);
  EXPECT_LE(std::abs(sampling.frequency_penalty), 2);
  EXPECT_LE(sampling.logit_bias.size(), 100u);
  for (const auto& [token_id, bias] : sampling.logit_bias) {
    EXPECT_LT(token_id, 100u);
    EXPECT_LE(std::abs(bias), 100);
  }
}

void ExpectInRange(const GenerationPlan& plan) {
  EXPECT_GE(plan.prompt_ids.size(), 1u);
  EXPECT_GE(plan.max_tokens, 1u);
  EXPECT_LE(plan.prompt_ids.size() + plan.max_tokens, 32u);
  ExpectInRange(plan.sampling);
  EXPECT_LE(plan.min_tokens, plan.max_tokens);
  EXPECT_LE(plan.num_top_logprobs, 20u);
  EXPECT_LT(plan.prompt_logprobs_from.value_or(0), plan.prompt_ids.size());
  EXPECT_GE(plan.stream_interval, 1u);
  EXPECT_LE(plan.stream_interval, 1024u);
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
  for (int i = 0; i < 25'000 && !HasFailure(); ++i) {
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

}  // namespace
}  // namespace baton
