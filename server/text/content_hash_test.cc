#include "server/text/content_hash.h"

#include "gtest/gtest.h"

namespace baton {
namespace {

std::string HashOf(std::initializer_list<std::string_view> parts) {
  ContentHash hash;
  for (const std::string_view part : parts) hash.Add(part);
  return hash.Hex();
}

TEST(ContentHashTest, IsFnv1a) {
  // The offset basis, and values computed from the definition in Python.
  EXPECT_EQ(HashOf({}), "6c62272e07bb014262b821756295c58d");
  EXPECT_EQ(HashOf({""}), "9d30c1f78465995be47dda5e4e4e77ed");
  EXPECT_EQ(HashOf({"foobar"}), "ba1e6cfb320024ea830b5d5c310ef1c2");
}

TEST(ContentHashTest, PartsDoNotRunIntoEachOther) {
  EXPECT_NE(HashOf({"ab", "c"}), HashOf({"a", "bc"}));
  EXPECT_NE(HashOf({"ab", ""}), HashOf({"", "ab"}));
}

}  // namespace
}  // namespace baton
