#include "server/text/detokenizer.h"

#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "server/text/model_folder_for_test.h"
#include "server/text/tokenizer.h"
#include "server/text/utf8.h"

namespace baton {
namespace {

class DetokenizerTest : public testing::Test {
 protected:
  // The token of one byte.
  uint32_t ByteToken(uint8_t byte) const {
    for (uint32_t id = 16; id < tokenizer_->vocab_size(); ++id) {
      if (tokenizer_->TokenBytes(id) == std::string(1, byte)) return id;
    }
    ADD_FAILURE() << "no token for byte " << int{byte};
    return 0;
  }

  const std::unique_ptr<const Tokenizer> tokenizer_ =
      Tokenizer::Load(kDemoModelFolder).value();
};

TEST_F(DetokenizerTest, IncrementalEqualsOneShotForRandomIds) {
  for (uint32_t seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    // Few ids above the single bytes, so that characters break in every way;
    // some that no token has.
    const uint32_t num_ids = seed % 3 == 0 ? 4200 : 280;
    const bool skip_special = seed % 2 == 0;
    Detokenizer detokenizer(tokenizer_.get(), skip_special);
    std::vector<uint32_t> ids;
    std::string streamed;
    for (int i = 0; i < 200; ++i) {
      ids.push_back(random() % num_ids);
      const size_t before = streamed.size();
      detokenizer.Append(ids.back(), &streamed);
      ASSERT_TRUE(IsUtf8(streamed.substr(before))) << "seed " << seed;
      // At most the beginning of a character is held back.
      const std::string now = Decode(*tokenizer_, ids, skip_special);
      ASSERT_EQ(now.substr(0, streamed.size()), streamed) << "seed " << seed;
      ASSERT_LE(now.size(), streamed.size() + kReplacementCharacter.size());
    }
    detokenizer.Flush(&streamed);
    ASSERT_EQ(streamed, Decode(*tokenizer_, ids, skip_special))
        << "seed " << seed;
  }
}

TEST_F(DetokenizerTest, HoldsBackTheBeginningOfACharacter) {
  Detokenizer detokenizer(tokenizer_.get(), false);
  std::string out;
  for (const uint8_t byte : {0xF0, 0x9F, 0x98}) {
    detokenizer.Append(ByteToken(byte), &out);
    EXPECT_EQ(out, "");
  }
  detokenizer.Append(ByteToken(0x80), &out);
  EXPECT_EQ(out, "\xF0\x9F\x98\x80");
  detokenizer.Append(ByteToken(0xC3), &out);
  detokenizer.Append(ByteToken('a'), &out);
  EXPECT_EQ(out,
            "\xF0\x9F\x98\x80\xEF\xBF\xBD"
            "a");
}

TEST_F(DetokenizerTest, FlushReplacesWhatIsHeldBackOnce) {
  Detokenizer detokenizer(tokenizer_.get(), false);
  std::string out;
  detokenizer.Append(ByteToken(0xE2), &out);
  detokenizer.Append(ByteToken(0x82), &out);
  detokenizer.Flush(&out);
  EXPECT_EQ(out, kReplacementCharacter);
  detokenizer.Flush(&out);
  EXPECT_EQ(out, kReplacementCharacter);
}

TEST_F(DetokenizerTest, SpecialTokensAreLeftOutWhenAsked) {
  const std::vector<uint32_t> ids = {0, 1520, 3, 1};
  EXPECT_EQ(Decode(*tokenizer_, ids, true), "Hello<｜User｜>");
  EXPECT_EQ(Decode(*tokenizer_, ids, false),
            "<｜begin▁of▁sentence｜>Hello<｜User｜><｜end▁of▁sentence｜>");
}

TEST_F(DetokenizerTest, ASkippedTokenDoesNotBreakACharacter) {
  Detokenizer detokenizer(tokenizer_.get(), true);
  std::string out;
  detokenizer.Append(ByteToken(0xC3), &out);
  detokenizer.Append(1, &out);
  detokenizer.Append(ByteToken(0xA9), &out);
  EXPECT_EQ(out, "\xC3\xA9");
}

}  // namespace
}  // namespace baton
