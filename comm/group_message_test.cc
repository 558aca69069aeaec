#include "comm/group_message.h"

#include <gtest/gtest.h>

#include <random>

namespace baton {
namespace {

GroupMember Member(uint32_t offset) {
  return {.rank_offset = offset,
          .local_ranks = 4,
          .link_address = "10.0.0.1:4000",
          .transport_address = std::string("with\0null", 9),
          .host_id = "host",
          .incarnation = 0x0102030405060708};
}

std::vector<GroupMessage> OneOfEach() {
  return {GroupHello{.fingerprint = "f",
                     .options = {{"kv_dtype", "bf16"}, {"slots", "288"}},
                     .ep_size = 8,
                     .last_epoch = 5,
                     .member = Member(4)},
          GroupRefused{"kv_dtype", "differs"},
          GroupFormed{6, {Member(0), Member(4)}},
          GroupLinkHello{6, 4, 77},
          GroupReady{6},
          GroupStart{6},
          GroupEpochEnding{6, {4, 5, 6, 7}, "gone"},
          GroupEpochEnding{6, {}, ""},
          GroupHello{}};
}

TEST(GroupMessageTest, EveryKindIsReadBackAsItWas) {
  for (const GroupMessage& message : OneOfEach()) {
    const std::string bytes = EncodeGroupMessage(message);
    const auto decoded = DecodeGroupMessage(bytes);
    ASSERT_TRUE(decoded.has_value()) << message.index();
    EXPECT_EQ(decoded->index(), message.index());
    EXPECT_EQ(EncodeGroupMessage(*decoded), bytes);
  }
}

TEST(GroupMessageTest, TheFieldsOfAHelloKeepTheirPlaces) {
  const auto decoded = DecodeGroupMessage(EncodeGroupMessage(OneOfEach()[0]));
  const auto& hello = std::get<GroupHello>(decoded.value());
  EXPECT_EQ(hello.fingerprint, "f");
  ASSERT_EQ(hello.options.size(), 2u);
  EXPECT_EQ(hello.options[1].name, "slots");
  EXPECT_EQ(hello.options[1].value, "288");
  EXPECT_EQ(hello.ep_size, 8u);
  EXPECT_EQ(hello.last_epoch, 5u);
  EXPECT_EQ(hello.member, Member(4));
}

TEST(GroupMessageTest, TheLayoutIsTheDocumentedOne) {
  EXPECT_EQ(EncodeGroupFrame(GroupLinkHello{0x0807060504030201, 9, 10}),
            std::string("\x18\0\0\0"
                        "\x42\x47\x01\x04"
                        "\x01\x02\x03\x04\x05\x06\x07\x08"
                        "\x09\0\0\0"
                        "\x0a\0\0\0\0\0\0\0",
                        28));
}

TEST(GroupMessageTest, EveryTruncationAndEveryExcessIsRefused) {
  for (const GroupMessage& message : OneOfEach()) {
    const std::string bytes = EncodeGroupMessage(message);
    for (size_t size = 0; size < bytes.size(); ++size) {
      EXPECT_FALSE(DecodeGroupMessage(bytes.substr(0, size)).has_value())
          << message.index() << " cut to " << size;
    }
    EXPECT_FALSE(DecodeGroupMessage(bytes + '\0').has_value());
  }
}

TEST(GroupMessageTest, AForeignMagicOrKindIsRefused) {
  const std::string good = EncodeGroupMessage(GroupReady{1});
  for (const auto& [at, value] : std::vector<std::pair<size_t, char>>{
           {0, 0}, {1, 0}, {2, 0}, {3, 0}, {3, 8}}) {
    std::string bad = good;
    bad[at] = value;
    EXPECT_FALSE(DecodeGroupMessage(bad).has_value()) << at;
  }
}

TEST(GroupMessageTest, AnotherVersionIsKnownAsSuchAndItsRefusalIsRead) {
  std::string hello = EncodeGroupMessage(GroupHello{});
  hello[2] = 9;
  hello += "and more";
  const auto foreign = DecodeGroupMessage(hello);
  ASSERT_TRUE(foreign.has_value());
  EXPECT_EQ(std::get<GroupForeignVersion>(*foreign).version, 9);

  std::string refused = EncodeGroupMessage(GroupRefused{"version", "old"});
  refused[2] = 9;
  const auto read = DecodeGroupMessage(refused);
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(std::get<GroupRefused>(*read).reason, "old");
}

TEST(GroupMessageTest, WhatIsAboveALimitIsRefused) {
  const auto accepted = [](const GroupMessage& message) {
    return DecodeGroupMessage(EncodeGroupMessage(message)).has_value();
  };
  GroupHello hello;
  hello.member.transport_address.resize(kMaxTransportAddressBytes);
  hello.fingerprint.resize(kMaxGroupTextBytes);
  hello.options.resize(kMaxGroupOptions);
  EXPECT_TRUE(accepted(hello));
  GroupHello bad = hello;
  bad.member.transport_address += 'x';
  EXPECT_FALSE(accepted(bad));
  bad = hello;
  bad.fingerprint += 'x';
  EXPECT_FALSE(accepted(bad));
  bad = hello;
  bad.options.emplace_back();
  EXPECT_FALSE(accepted(bad));
  GroupEpochEnding ending;
  ending.ranks.resize(kMaxGroupRanks);
  EXPECT_TRUE(accepted(ending));
  ending.ranks.push_back(0);
  EXPECT_FALSE(accepted(ending));
  EXPECT_TRUE(accepted(GroupReady{uint64_t{1} << 62}));
  EXPECT_FALSE(accepted(GroupReady{(uint64_t{1} << 62) + 1}));
}

TEST(GroupMessageTest, TheLargestMessagesFitTheirFrames) {
  GroupMember member;
  member.link_address.resize(kMaxGroupTextBytes);
  member.host_id.resize(kMaxGroupTextBytes);
  member.transport_address.resize(kMaxTransportAddressBytes);
  GroupHello hello;
  hello.fingerprint.resize(kMaxGroupTextBytes);
  hello.options.resize(kMaxGroupOptions,
                       {std::string(kMaxGroupTextBytes, 'n'),
                        std::string(kMaxGroupTextBytes, 'v')});
  hello.member = member;
  EXPECT_LE(EncodeGroupFrame(hello).size(), kMaxGroupFrameBytes);
  GroupFormed formed;
  formed.members.resize(kMaxGroupRanks, member);
  EXPECT_LE(EncodeGroupFrame(formed).size(), kMaxFormedFrameBytes);
}

// What is accepted means exactly its bytes; nothing else may happen.
TEST(GroupMessageTest, ChangedBytesNeverDecodeToSomethingElse) {
  std::mt19937_64 random(1);
  const std::vector<GroupMessage> messages = OneOfEach();
  size_t accepted = 0;
  for (int i = 0; i < 100'000; ++i) {
    std::string bytes =
        EncodeGroupMessage(messages[random() % messages.size()]);
    for (uint64_t n = random() % 4; n > 0; --n) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    if (random() % 4 == 0) bytes.resize(random() % (bytes.size() + 4));
    const auto decoded = DecodeGroupMessage(bytes);
    if (!decoded.has_value()) continue;
    if (bytes[2] != kGroupProtocolVersion) continue;
    ++accepted;
    ASSERT_EQ(EncodeGroupMessage(*decoded), bytes);
  }
  EXPECT_GT(accepted, 10'000u);
}

TEST(GroupFrameReaderTest, FindsTheMessagesHoweverTheStreamIsCut) {
  std::string stream;
  for (const GroupMessage& message : OneOfEach()) {
    stream += EncodeGroupFrame(message);
  }
  std::mt19937_64 random(1);
  for (int i = 0; i < 200; ++i) {
    GroupFrameReader reader(kMaxGroupFrameBytes);
    size_t found = 0;
    for (size_t at = 0; at < stream.size();) {
      const size_t size = 1 + random() % 100;
      reader.Append(std::string_view(stream).substr(at, size));
      at += size;
      while (auto message = reader.Next()) {
        EXPECT_EQ(message->index(), OneOfEach()[found].index());
        ++found;
      }
    }
    EXPECT_EQ(found, OneOfEach().size());
    EXPECT_FALSE(reader.failed());
  }
}

TEST(GroupFrameReaderTest, AFrameThatIsTooLongFailsBeforeItIsThere) {
  GroupFrameReader reader(100);
  reader.Append(std::string("\x61\0\0\0", 4));  // 97 and its length: 101.
  EXPECT_FALSE(reader.Next().has_value());
  EXPECT_TRUE(reader.failed());
}

TEST(GroupFrameReaderTest, NothingIsReadAfterGarbage) {
  GroupFrameReader reader(kMaxGroupFrameBytes);
  reader.Append(EncodeGroupFrame(GroupReady{1}));
  reader.Append(std::string("\x02\0\0\0hi", 6));
  reader.Append(EncodeGroupFrame(GroupReady{2}));
  EXPECT_TRUE(reader.Next().has_value());
  EXPECT_FALSE(reader.Next().has_value());
  EXPECT_TRUE(reader.failed());
  reader.Append(EncodeGroupFrame(GroupReady{3}));
  EXPECT_FALSE(reader.Next().has_value());
}

}  // namespace
}  // namespace baton
