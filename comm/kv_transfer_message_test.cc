#include "comm/kv_transfer_message.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace baton {
namespace {

std::vector<KvTransferMessage> OneOfEach() {
  KvOpenMessage open;
  open.export_id = ExportId(0x0102030405060708);
  open.token = ~uint64_t{0};
  open.mode = KvTransferMode::kPush;
  open.first_block = 3;
  open.num_blocks = 0xffffffff;
  open.block_bytes = uint64_t{1} << 33;
  open.first_tag = 17;
  open.max_in_flight = 16;
  open.checksums = true;
  open.address = std::string("with\0null", 9);
  return {open,
          KvReadableMessage{5, 12, {}},
          KvReadableMessage{5, 12, {7, ~uint64_t{0}, 0}},
          KvTailMessage{6, std::string(1000, 't')},
          KvTailMessage{6, ""},
          KvDoneMessage{ExportId(1), 2},
          KvCancelMessage{ExportId(3), 4},
          KvEndedMessage{9}};
}

TEST(KvTransferMessageTest, EveryKindIsReadBackAsItWas) {
  for (const KvTransferMessage& message : OneOfEach()) {
    const std::string bytes = EncodeKvTransferMessage(message);
    const auto decoded = DecodeKvTransferMessage(bytes);
    ASSERT_TRUE(decoded.has_value()) << message.index();
    EXPECT_EQ(decoded->index(), message.index());
    EXPECT_EQ(EncodeKvTransferMessage(*decoded), bytes);
  }
}

TEST(KvTransferMessageTest, TheFieldsOfAnOpenKeepTheirPlaces) {
  const auto decoded =
      DecodeKvTransferMessage(EncodeKvTransferMessage(OneOfEach()[0]));
  const auto& open = std::get<KvOpenMessage>(decoded.value());
  EXPECT_EQ(open.export_id, ExportId(0x0102030405060708));
  EXPECT_EQ(open.token, ~uint64_t{0});
  EXPECT_EQ(open.mode, KvTransferMode::kPush);
  EXPECT_EQ(open.first_block, 3u);
  EXPECT_EQ(open.num_blocks, 0xffffffffu);
  EXPECT_EQ(open.block_bytes, uint64_t{1} << 33);
  EXPECT_EQ(open.first_tag, 17u);
  EXPECT_EQ(open.max_in_flight, 16u);
  EXPECT_TRUE(open.checksums);
  EXPECT_EQ(open.address, std::string("with\0null", 9));
}

TEST(KvTransferMessageTest, TheLayoutIsTheDocumentedOne) {
  EXPECT_EQ(EncodeKvTransferMessage(KvReadableMessage{
                0x0807060504030201, 12, {0x1817161514131211}}),
            std::string("\x42\x4b\x02\x02"
                        "\x01\x02\x03\x04\x05\x06\x07\x08"
                        "\x0c\0\0\0\x01\0\0\0"
                        "\x11\x12\x13\x14\x15\x16\x17\x18",
                        28));
}

TEST(KvTransferMessageTest, EveryTruncationAndEveryExcessIsRefused) {
  for (const KvTransferMessage& message : OneOfEach()) {
    const std::string bytes = EncodeKvTransferMessage(message);
    for (size_t size = 0; size < bytes.size(); ++size) {
      EXPECT_FALSE(DecodeKvTransferMessage(bytes.substr(0, size)).has_value())
          << message.index() << " cut to " << size;
    }
    EXPECT_FALSE(DecodeKvTransferMessage(bytes + '\0').has_value());
  }
}

TEST(KvTransferMessageTest, ForeignMagicVersionKindAndModeAreRefused) {
  const std::string good = EncodeKvTransferMessage(OneOfEach()[0]);
  constexpr size_t kMode = 4 + 8 + 8;
  constexpr size_t kChecksums = kMode + 1 + 4 + 4 + 8 + 8 + 4;
  for (const auto& [at, value] :
       std::vector<std::pair<size_t, char>>{{0, 0},
                                            {1, 0},
                                            {2, 1},
                                            {3, 0},
                                            {3, 7},
                                            {kMode, 0},
                                            {kMode, 3},
                                            {kChecksums, 2}}) {
    std::string bad = good;
    bad[at] = value;
    EXPECT_FALSE(DecodeKvTransferMessage(bad).has_value()) << at;
  }
}

// What is accepted means exactly its bytes; nothing else may happen.
TEST(KvTransferMessageTest, ChangedBytesNeverDecodeToSomethingElse) {
  std::mt19937_64 random(1);
  const std::vector<KvTransferMessage> messages = OneOfEach();
  size_t accepted = 0;
  for (int i = 0; i < 100'000; ++i) {
    std::string bytes =
        EncodeKvTransferMessage(messages[random() % messages.size()]);
    for (uint64_t n = random() % 4; n > 0; --n) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    if (random() % 4 == 0) bytes.resize(random() % (bytes.size() + 4));
    const auto decoded = DecodeKvTransferMessage(bytes);
    if (!decoded.has_value()) continue;
    ++accepted;
    ASSERT_EQ(EncodeKvTransferMessage(*decoded), bytes);
  }
  EXPECT_GT(accepted, 10'000u);
}

}  // namespace
}  // namespace baton
