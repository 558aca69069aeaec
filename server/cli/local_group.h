// What makes batond processes of one machine an expert-parallel group.
#ifndef BATON_SERVER_CLI_LOCAL_GROUP_H_
#define BATON_SERVER_CLI_LOCAL_GROUP_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace baton {

// A free port of 127.0.0.1, kept from others while this lives: nobody is given
// it for port 0, but whoever is told may listen there. Thread-compatible.
class ReservedPort final {
 public:
  static absl::StatusOr<std::unique_ptr<ReservedPort>> Find();
  ~ReservedPort();
  ReservedPort(const ReservedPort&) = delete;
  ReservedPort& operator=(const ReservedPort&) = delete;

  // 127.0.0.1:PORT
  std::string endpoint() const;

 private:
  explicit ReservedPort(int fd) : fd_(fd) {}

  const int fd_;
};

// Ranks that are split evenly over processes.
struct LocalGroup {
  uint32_t ep_size = 1;
  uint32_t num_processes = 1;  // Divides ep_size.
  std::string leader = {};     // Of several processes.
};
// What its `process`th batond is told of it. None for a group of one rank.
std::vector<std::string> GroupFlagsOf(const LocalGroup& group,
                                      uint32_t process);

}  // namespace baton

#endif  // BATON_SERVER_CLI_LOCAL_GROUP_H_
