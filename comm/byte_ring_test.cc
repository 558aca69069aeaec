#include "comm/byte_ring.h"

#include <gtest/gtest.h>

#include <array>
#include <random>
#include <thread>

namespace baton {
namespace {

struct Ring {
  ByteRingState state = {};
  std::array<std::byte, 100> bytes = {};
  ByteRingWriter writer{&state, bytes};
  ByteRingReader reader{&state, bytes};
};

TEST(ByteRingTest, GivesBackWhatWasWrittenPastItsEndToo) {
  Ring ring;
  for (const size_t size : {0, 1, 60, 100, 99, 7}) {
    const std::string data(size, static_cast<char>('a' + size % 26));
    EXPECT_EQ(ring.writer.Write(data), size);
    EXPECT_EQ(ring.reader.empty(), size == 0);
    std::string read = "before ";
    ASSERT_TRUE(ring.reader.ReadTo(&read));
    EXPECT_EQ(read, "before " + data);
    EXPECT_TRUE(ring.reader.empty());
  }
}

TEST(ByteRingTest, TakesWhatFitsAndTellsOnceThatItsWriterWaits) {
  Ring ring;
  EXPECT_EQ(ring.writer.Write(std::string(100, 'a')), 100u);
  EXPECT_FALSE(ring.reader.TakeWriterWaits());
  EXPECT_EQ(ring.writer.Write("b"), 0u);
  std::string read;
  ASSERT_TRUE(ring.reader.ReadTo(&read));
  EXPECT_TRUE(ring.reader.TakeWriterWaits());
  EXPECT_FALSE(ring.reader.TakeWriterWaits());
  EXPECT_EQ(ring.writer.Write(std::string(101, 'c')), 100u);
  EXPECT_TRUE(ring.reader.TakeWriterWaits());
}

TEST(ByteRingTest, CountsThatCannotBeAreFoundOnBothSides) {
  Ring ring;
  ring.state.written.store(101);
  std::string read;
  EXPECT_FALSE(ring.reader.ReadTo(&read));
  EXPECT_EQ(read, "");
  ring.state.read.store(1);  // Of nothing written.
  EXPECT_FALSE(ring.writer.Write("a").has_value());
}

TEST(ByteRingTest, BetweenThreadsEveryByteComesInOrder) {
  Ring ring;
  std::mt19937 random(1);
  std::string sent(300'000, ' ');
  for (char& c : sent) c = static_cast<char>(random());
  std::thread writer([&] {
    for (size_t done = 0; done < sent.size();) {
      const size_t size = 1 + random() % 150;
      done += ring.writer.Write(std::string_view(sent).substr(done, size))
                  .value_or(sent.size());
      std::this_thread::yield();
    }
  });
  std::string read;
  while (read.size() < sent.size()) {
    ASSERT_TRUE(ring.reader.ReadTo(&read));
    std::this_thread::yield();
  }
  writer.join();
  EXPECT_EQ(read, sent);
}

}  // namespace
}  // namespace baton
