// A program that a test runs as its child, and may stop and kill.
#ifndef BATON_COMM_TESTING_PEER_PROGRAM_H_
#define BATON_COMM_TESTING_PEER_PROGRAM_H_

#include <sys/types.h>

#include <string>
#include <vector>

namespace baton {

class PeerProgram {
 public:
  // The first argument is the program's path.
  explicit PeerProgram(std::vector<std::string> arguments);
  // Ends its input: a healthy child leaves then with exit code 0, and any other
  // that was not killed fails the test.
  ~PeerProgram();
  PeerProgram(const PeerProgram&) = delete;
  PeerProgram& operator=(const PeerProgram&) = delete;

  // SIGSTOP: returns when it has stopped.
  void Signal(int signal);
  void WriteLine(std::string line);
  std::string ReadLine();
  bool HasOutput() const;
  int output() const { return output_; }  // A file descriptor.

 private:
  pid_t pid_ = -1;
  int input_ = -1;
  int output_ = -1;
  bool killed_ = false;
};

}  // namespace baton

#endif  // BATON_COMM_TESTING_PEER_PROGRAM_H_
