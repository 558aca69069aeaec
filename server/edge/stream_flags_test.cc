#include "server/edge/stream_flags.h"

#include <array>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace baton {
namespace {

FlagsOutcome Parse(const std::vector<std::string>& arguments,
                   StreamFlags* streams) {
  Flags flags("test", "A test.");
  AddStreamFlags(&flags, streams);
  const std::array<const char*, 1> environment = {nullptr};
  return flags.Parse(arguments, environment.data(), {}, {});
}

TEST(StreamFlagsTest, TheyAreWhatStreamsAreBoundBy) {
  StreamFlags streams = {.slow_reader_timeout = absl::Seconds(90)};
  EXPECT_TRUE(Parse({}, &streams).run);
  EXPECT_EQ(streams.limits().slow_reader_timeout, absl::Seconds(90));
  EXPECT_EQ(streams.limits().max_bytes, StreamLimits().max_bytes);
  EXPECT_TRUE(
      Parse({"--slow_reader_timeout=5s", "--max_stream_bytes=2MiB"}, &streams)
          .run);
  EXPECT_EQ(streams.limits().slow_reader_timeout, absl::Seconds(5));
  EXPECT_EQ(streams.limits().max_bytes, size_t{2} << 20);
}

TEST(StreamFlagsTest, AStreamHasTimeAndBytesToWorkWith) {
  for (const std::string argument :
       {"--slow_reader_timeout=0s", "--max_stream_bytes=1000"}) {
    StreamFlags streams;
    const FlagsOutcome outcome = Parse({argument}, &streams);
    EXPECT_FALSE(outcome.run);
    EXPECT_NE(outcome.text.find(argument.substr(0, argument.find('='))),
              std::string::npos)
        << outcome.text;
  }
}

}  // namespace
}  // namespace baton
