#include "server/router/sample_stream.h"

#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "proto/baton/v1/inference.pb.h"
#include "proto/baton/v1/worker.pb.h"

namespace baton {
namespace {

const Tokenizer& DemoTokenizer() {
  static const Tokenizer* const tokenizer =
      Tokenizer::Load("models/tiny-deepseek-v3")->release();
  return *tokenizer;
}

std::vector<uint32_t> Encode(std::string_view text) {
  return *DemoTokenizer().Encode(text, /*parse_special=*/false);
}

GenerationPlan Plan(std::vector<std::string> stop_strings = {}) {
  GenerationPlan plan;
  plan.max_tokens = 1000;
  plan.stop_strings = std::move(stop_strings);
  plan.stop_token_ids = {1, 7};
  plan.num_eos_token_ids = 1;
  return plan;
}

v1::TokenChunk Chunk(uint32_t first, std::span<const uint32_t> ids) {
  v1::TokenChunk chunk;
  chunk.set_first_token_index(first);
  for (uint32_t id : ids) {
    chunk.add_token_ids(id);
    chunk.add_logprobs(-static_cast<float>(first++));
  }
  return chunk;
}

v1::GenerateFinished Reason(const SampleStream& stream) {
  v1::GenerateFinished finished;
  stream.FillReason(&finished);
  return finished;
}

TEST(SampleStreamTest, PassesEachTokenOnOnceHoweverChunksOverlap) {
  const std::vector<uint32_t> ids =
      Encode("Ωmega naïve 🙂🙂 and a longer tail of plain words");
  const std::string text = Decode(DemoTokenizer(), ids, true);
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    const GenerationPlan plan = Plan();
    SampleStream stream(&DemoTokenizer(), &plan);
    v1::GenerateChunk out;
    while (stream.num_tokens() < ids.size()) {
      // From a known token, or the next, to any later one.
      const size_t first = random() % (stream.num_tokens() + 1);
      const size_t count = random() % (ids.size() - first + 1);
      ASSERT_TRUE(
          stream
              .Append(Chunk(first, std::span(ids).subspan(first, count)), &out)
              .ok());
    }
    stream.Flush(&out);
    EXPECT_EQ(
        std::vector<uint32_t>(out.token_ids().begin(), out.token_ids().end()),
        ids);
    for (int i = 0; i < out.logprobs_size(); ++i) {
      EXPECT_EQ(out.logprobs(i), -static_cast<float>(i));
    }
    EXPECT_EQ(out.text(), text);
  }
}

TEST(SampleStreamTest, SaysWhereAChunkBegins) {
  const std::vector<uint32_t> ids = Encode("one two three");
  const GenerationPlan plan = Plan();
  SampleStream stream(&DemoTokenizer(), &plan);
  v1::GenerateChunk first;
  ASSERT_TRUE(stream.Append(Chunk(0, std::span(ids).first(1)), &first).ok());
  v1::GenerateChunk second;
  ASSERT_TRUE(stream.Append(Chunk(0, std::span(ids).first(2)), &second).ok());
  EXPECT_EQ(first.first_token_index(), 0u);
  EXPECT_EQ(second.first_token_index(), 1u);
  EXPECT_EQ(second.token_ids_size(), 1);
}

TEST(SampleStreamTest, NeverShowsAPartOfAStopString) {
  const std::string text = "Roses are red, STOP and more";
  const std::vector<uint32_t> ids = Encode(text);
  const GenerationPlan plan = Plan({"never", "STOP"});
  SampleStream stream(&DemoTokenizer(), &plan);
  std::string shown;
  uint32_t index = 0;
  while (!stream.met_stop_string() && index < ids.size()) {
    v1::GenerateChunk out;
    ASSERT_TRUE(
        stream.Append(Chunk(index, std::span(ids).subspan(index, 1)), &out)
            .ok());
    shown += out.text();
    EXPECT_TRUE(std::string("Roses are red, ").starts_with(shown)) << shown;
    ++index;
  }
  EXPECT_EQ(shown, "Roses are red, ");
  EXPECT_EQ(stream.num_tokens(), index);
  EXPECT_EQ(Reason(stream).finish_reason(), v1::FINISH_REASON_STOP_STRING);
  EXPECT_EQ(Reason(stream).stop_string(), "STOP");
}

TEST(SampleStreamTest, ShowsAtTheEndWhatOnlyLookedLikeAStopString) {
  const std::vector<uint32_t> ids = Encode("say STO");
  const GenerationPlan plan = Plan({"STOP"});
  SampleStream stream(&DemoTokenizer(), &plan);
  v1::GenerateChunk out;
  ASSERT_TRUE(stream.Append(Chunk(0, ids), &out).ok());
  EXPECT_EQ(out.text(), "say ");
  stream.Flush(&out);
  EXPECT_EQ(out.text(), "say STO");
}

TEST(SampleStreamTest, ShowsHalfACharacterAtTheEndAsItsReplacement) {
  const std::vector<uint32_t> ids = Encode("🙂");
  ASSERT_GT(ids.size(), 1u) << "one token for the whole character";
  const GenerationPlan plan = Plan();
  SampleStream stream(&DemoTokenizer(), &plan);
  v1::GenerateChunk out;
  ASSERT_TRUE(stream.Append(Chunk(0, std::span(ids).first(1)), &out).ok());
  EXPECT_EQ(out.text(), "");
  stream.Flush(&out);
  EXPECT_EQ(out.text(), "\uFFFD");
}

TEST(SampleStreamTest, TellsEosFromTheClientsStopTokens) {
  for (const uint32_t stop : {1, 7}) {
    const GenerationPlan plan = Plan();
    SampleStream stream(&DemoTokenizer(), &plan);
    v1::GenerateChunk out;
    const std::vector<uint32_t> ids = {20, stop};
    ASSERT_TRUE(stream.Append(Chunk(0, ids), &out).ok());
    EXPECT_EQ(out.token_ids_size(), 2);
    EXPECT_EQ(out.text(), Decode(DemoTokenizer(), {{20}}, true));
    EXPECT_TRUE(stream.met_stop_token());
    EXPECT_EQ(Reason(stream).finish_reason(),
              stop == 1 ? v1::FINISH_REASON_EOS : v1::FINISH_REASON_STOP_TOKEN);
    EXPECT_EQ(Reason(stream).stop_token_id(), stop);
  }
}

TEST(SampleStreamTest, GoesOnAfterEosWhenItIsIgnored) {
  GenerationPlan plan = Plan();
  plan.stop_token_ids.clear();
  plan.num_eos_token_ids = 0;
  plan.max_tokens = 3;
  SampleStream stream(&DemoTokenizer(), &plan);
  v1::GenerateChunk out;
  const std::vector<uint32_t> ids = {20, 1, 21};
  ASSERT_TRUE(stream.Append(Chunk(0, ids), &out).ok());
  EXPECT_EQ(out.token_ids_size(), 3);
  EXPECT_TRUE(stream.met_length());
  EXPECT_EQ(Reason(stream).finish_reason(), v1::FINISH_REASON_LENGTH);
}

TEST(SampleStreamTest, KeepsTheStopStringWhereThatWasAsked) {
  const std::vector<uint32_t> ids = Encode("Roses are red, STOP and more");
  GenerationPlan plan = Plan({"never", "STOP"});
  plan.include_stop_string = true;
  SampleStream stream(&DemoTokenizer(), &plan);
  v1::GenerateChunk out;
  ASSERT_TRUE(stream.Append(Chunk(0, ids), &out).ok());
  EXPECT_TRUE(stream.met_stop_string());
  EXPECT_EQ(out.text(), "Roses are red, STOP");
  stream.Flush(&out);
  EXPECT_EQ(out.text(), "Roses are red, STOP");
}

TEST(SampleStreamTest, SearchesForStopStringsBehindMinTokensOnly) {
  const std::vector<uint32_t> ids = Encode("STOP, STOP, STOP");
  for (uint32_t min_tokens = 0; min_tokens <= ids.size(); ++min_tokens) {
    GenerationPlan plan = Plan({"STOP"});
    plan.min_tokens = min_tokens;
    SampleStream stream(&DemoTokenizer(), &plan);
    v1::GenerateChunk out;
    ASSERT_TRUE(stream.Append(Chunk(0, ids), &out).ok());
    stream.Flush(&out);
    const std::string first =
        Decode(DemoTokenizer(), std::span(ids).first(min_tokens), true);
    const std::string all = "STOP, STOP, STOP";
    const size_t match = all.find("STOP", first.size());
    EXPECT_EQ(out.text(), all.substr(0, match)) << min_tokens;
    EXPECT_EQ(stream.met_stop_string(), match != std::string::npos);
    EXPECT_TRUE(!stream.met_stop_string() || stream.num_tokens() > min_tokens);
  }
}

TEST(SampleStreamTest, ShowsSpecialTokensWhereThatWasAsked) {
  const std::vector<uint32_t> special = {0, 20};  // BOS, and another.
  const std::string text = Decode(DemoTokenizer(), special, false);
  ASSERT_NE(text, Decode(DemoTokenizer(), special, true));
  for (const bool skip : {true, false}) {
    GenerationPlan plan = Plan();
    plan.skip_special_tokens = skip;
    SampleStream stream(&DemoTokenizer(), &plan);
    v1::GenerateChunk out;
    ASSERT_TRUE(stream.Append(Chunk(0, special), &out).ok());
    EXPECT_EQ(out.text(), Decode(DemoTokenizer(), special, skip));
  }
}

TEST(SampleStreamTest, PassesAlternativesOnWithTheirTokens) {
  GenerationPlan plan = Plan();
  plan.num_top_logprobs = 2;
  SampleStream stream(&DemoTokenizer(), &plan);
  v1::TokenChunk chunk = Chunk(0, std::vector<uint32_t>{20, 21});
  v1::GenerateChunk out;
  EXPECT_TRUE(absl::IsInternal(stream.Append(chunk, &out)));
  for (const uint32_t id : {30, 31}) {
    chunk.add_top_logprobs()->add_token_ids(id);
  }
  ASSERT_TRUE(stream.Append(chunk, &out).ok());
  ASSERT_TRUE(stream.Append(chunk, &out).ok());  // Known by now.
  ASSERT_EQ(out.top_logprobs_size(), 2);
  EXPECT_EQ(out.top_logprobs(1).token_ids(0), 31u);
  const GenerationPlan without = Plan();
  SampleStream other(&DemoTokenizer(), &without);
  EXPECT_TRUE(absl::IsInternal(other.Append(chunk, &out)));
}

TEST(SampleStreamTest, SurvivesIndicesAtTheEndOfTheirRange) {
  const GenerationPlan plan = Plan();
  SampleStream stream(&DemoTokenizer(), &plan);
  v1::GenerateChunk out;
  const std::vector<uint32_t> ids = {20};
  EXPECT_TRUE(absl::IsInternal(stream.Append(Chunk(UINT32_MAX, ids), &out)));
  EXPECT_EQ(out.token_ids_size(), 0);
}

}  // namespace
}  // namespace baton
