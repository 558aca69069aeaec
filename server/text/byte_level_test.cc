#include "server/text/byte_level.h"

#include <set>

#include "gtest/gtest.h"
#include "server/text/utf8.h"

namespace baton {
namespace {

TEST(ByteLevelTest, EveryByteHasACharacterOfItsOwn) {
  std::set<char32_t> characters;
  for (int byte = 0; byte < 256; ++byte) {
    std::string written;
    AppendCodePoint(ByteLevelCharacter(byte), &written);
    EXPECT_EQ(FromByteLevel(written), std::string(1, static_cast<char>(byte)));
    characters.insert(ByteLevelCharacter(byte));
  }
  EXPECT_EQ(characters.size(), 256);
}

TEST(ByteLevelTest, WritesAsGpt2Does) {
  EXPECT_EQ(ByteLevelCharacter('a'), U'a');
  EXPECT_EQ(ByteLevelCharacter(0x00), 0x100);
  EXPECT_EQ(ByteLevelCharacter(' '), 0x120);   // G with a dot.
  EXPECT_EQ(ByteLevelCharacter('\n'), 0x10A);  // C with a dot.
  EXPECT_EQ(ByteLevelCharacter(0xAD), 0x143);
  EXPECT_EQ(ByteLevelCharacter(0xFF), 0xFF);
}

TEST(ByteLevelTest, OtherCharactersStandForNothing) {
  EXPECT_EQ(FromByteLevel("a b"), std::nullopt);
  EXPECT_EQ(FromByteLevel("\xEF\xBD\x9C"), std::nullopt);  // As in <｜User｜>.
  EXPECT_EQ(FromByteLevel("\xC5\x84"), std::nullopt);      // U+0144.
  EXPECT_EQ(FromByteLevel("a\xFF"), std::nullopt);
  EXPECT_EQ(FromByteLevel(""), "");
}

}  // namespace
}  // namespace baton
