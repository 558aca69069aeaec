// One process of a group, for tests that kill it:
//   group_peer EP_SIZE RANK_OFFSET LOCAL_RANKS LEADER
// It says "started EPOCH" and "ended EPOCH RANKS" and joins again; it is told
// "EPOCH RANK" to end that epoch and suspect that rank. The end of its input
// ends it.
#include <unistd.h>

#include <iostream>
#include <string>

#include "base/logging.h"
#include "comm/group_agreement.h"
#include "comm/group_links.h"

namespace baton {
namespace {

void Say(const std::string& line) {
  const std::string text = line + "\n";
  CHECK_EQ(write(STDOUT_FILENO, text.data(), text.size()),
           static_cast<ssize_t>(text.size()));
}

int Main(char** argv) {
  const auto number = [argv](int i) {
    return static_cast<uint32_t>(std::stoul(argv[i]));
  };
  const GroupLinksOptions options = {
      .formation = {.self = {.ep_size = number(1),
                             .member = {.rank_offset = number(2),
                                        .local_ranks = number(3)}},
                    .leader_address = argv[4]}};
  std::unique_ptr<GroupLinks> links;
  auto started = GroupLinks::Start(
      options, {.formed = {},
                .started =
                    [](const GroupEpoch& group) {
                      Say("started " + std::to_string(group.epoch));
                    },
                .ended =
                    [&links](const GroupEpochEnd& end) {
                      if (end.started) {
                        Say("ended " + std::to_string(end.epoch) + " " +
                            FormatRanks(end.ranks));
                      }
                      links->Join("");
                    },
                .refused = {}});
  CHECK_OK(started.status());
  links = *std::move(started);
  links->Join("");
  uint64_t epoch = 0;
  uint32_t rank = 0;
  while (std::cin >> epoch >> rank) {
    links->EndEpoch(epoch, {rank}, "told to");
  }
  links->Stop();
  return 0;
}

}  // namespace
}  // namespace baton

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  return baton::Main(argv);
}
