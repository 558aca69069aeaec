// MB/s of a KV import from another process, over shared memory and over tcp,
// without and with checksums, beside memcpy of as many bytes and a plain TCP
// connection that carries them, in turns:
//
//   kv_transfer_benchmark [BLOCKS [BLOCK_BYTES [ROUNDS]]]
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/logging.h"
#include "bench/statistics.h"
#include "comm/testing/kv_handle_text.h"
#include "comm/testing/kv_transfer_side.h"
#include "comm/ucx_transport.h"

namespace baton {
namespace {

struct Size {
  uint32_t blocks = 128;
  size_t block_bytes = 1 << 20;
  int rounds = 9;
};

std::vector<BlockId> AllBlocks(uint32_t n) {
  std::vector<BlockId> blocks;
  for (uint32_t i = 0; i < n; ++i) blocks.push_back(BlockId(i));
  return blocks;
}

std::unique_ptr<KvTransferSide> MakeSide(UcxMode mode, const Size& size,
                                         const Clock* clock,
                                         bool checksums = false) {
  auto transport =
      UcxTransport::Create({.mode = mode, .network_devices = "lo"});
  CHECK_OK(transport.status());
  KvTransferAgentOptions options;
  options.checksums = checksums;
  return std::make_unique<KvTransferSide>(*std::move(transport), size.blocks,
                                          size.block_bytes, clock, options);
}

std::string ReadLine(int fd) {
  std::string line;
  char c = 0;
  while (read(fd, &c, 1) == 1 && c != '\n') line += c;
  return line;
}

void WriteLine(int fd, std::string line) {
  line += '\n';
  CHECK_EQ(write(fd, line.data(), line.size()),
           static_cast<ssize_t>(line.size()));
}

// The exporter's process: a handle for each line that it reads.
void ServeExports(UcxMode mode, const Size& size, int in, int out) {
  const MonotonicClock clock;
  const auto side = MakeSide(mode, size, &clock);
  for (uint32_t i = 0; i < size.blocks; ++i) side->Fill(BlockId(i), i);
  for (uint64_t n = 1; !ReadLine(in).empty(); ++n) {
    const ExportId id(n);
    const KvHandle handle =
        side->agent().StartExport(id, AllBlocks(size.blocks), 0);
    side->agent().PublishReadable(id, size.blocks);
    side->agent().PublishTail(id, "tail");
    WriteLine(out, KvHandleToText(handle));
    while (!side->exports().contains(id)) {
      if (!side->agent().Poll()) side->agent().Wait(absl::Milliseconds(100));
    }
  }
}

// An importer with its exporter in a child.
class Pair {
 public:
  Pair(UcxMode mode, const Size& size) : size_(size) {
    int to_child[2], from_child[2];
    CHECK(pipe(to_child) == 0 && pipe(from_child) == 0);
    child_ = fork();
    if (child_ == 0) {
      close(to_child[1]);
      ServeExports(mode, size, to_child[0], from_child[1]);
      _exit(0);
    }
    close(to_child[0]);
    close(from_child[1]);
    to_child_ = to_child[1];
    from_child_ = from_child[0];
  }
  ~Pair() {
    close(to_child_);
    close(from_child_);
    waitpid(child_, nullptr, 0);
  }

  // Only when all children have been forked, for UCX has threads.
  void Start(UcxMode mode, bool checksums) {
    side_ = MakeSide(mode, size_, &clock_, checksums);
  }

  absl::Duration ImportOnce() {
    const ImportId id(++imports_);
    WriteLine(to_child_, "go");
    const KvHandle handle = KvHandleFromText(ReadLine(from_child_));
    side_->agent().StartImport(id, handle, 0, AllBlocks(size_.blocks));
    while (!side_->imports().contains(id)) {
      if (!side_->agent().Poll()) side_->agent().Wait(absl::Milliseconds(100));
    }
    const KvImportEnded& ended = side_->imports().at(id);
    CHECK_OK(ended.status);
    CHECK(side_->Holds(BlockId(size_.blocks - 1), size_.blocks - 1));
    return ended.duration;
  }

 private:
  const Size size_;
  const MonotonicClock clock_;
  pid_t child_;
  int to_child_;
  int from_child_;
  std::unique_ptr<KvTransferSide> side_;
  uint64_t imports_ = 0;
};

// The same bytes from a child over a plain TCP connection, on request.
class SocketPair {
 public:
  explicit SocketPair(const Size& size) : size_(size) {
    const int listener = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address);
    auto* const generic = reinterpret_cast<sockaddr*>(&address);
    CHECK_EQ(bind(listener, generic, length), 0);
    CHECK_EQ(listen(listener, 1), 0);
    CHECK_EQ(getsockname(listener, generic, &length), 0);
    child_ = fork();
    if (child_ == 0) {
      Serve(accept(listener, nullptr, nullptr));
      _exit(0);
    }
    close(listener);
    fd_ = socket(AF_INET, SOCK_STREAM, 0);
    CHECK_EQ(connect(fd_, generic, length), 0);
  }
  ~SocketPair() {
    close(fd_);
    waitpid(child_, nullptr, 0);
  }

  absl::Duration ReadOnce(std::vector<char>* to) {
    const absl::Time start = absl::Now();
    CHECK_EQ(write(fd_, "g", 1), 1);
    for (size_t done = 0; done < to->size();) {
      const ssize_t n = read(fd_, to->data() + done,
                             std::min(size_.block_bytes, to->size() - done));
      CHECK_GT(n, 0);
      done += static_cast<size_t>(n);
    }
    return absl::Now() - start;
  }

 private:
  void Serve(int fd) const {
    const std::vector<char> from(size_.blocks * size_.block_bytes, 1);
    char go = 0;
    while (read(fd, &go, 1) == 1) {
      for (size_t done = 0; done < from.size();) {
        const ssize_t n =
            write(fd, from.data() + done,
                  std::min(size_.block_bytes, from.size() - done));
        CHECK_GT(n, 0);
        done += static_cast<size_t>(n);
      }
    }
  }

  const Size size_;
  pid_t child_;
  int fd_;
};

// A way of an import, and how long its imports took.
struct Way {
  UcxMode mode;
  bool checksums;
  std::unique_ptr<Pair> pair = {};
  std::vector<absl::Duration> times = {};
};

// Block by block, as an import copies.
absl::Duration CopyOnce(const Size& size, const std::vector<char>& from,
                        std::vector<char>* to) {
  const absl::Time start = absl::Now();
  for (uint32_t i = 0; i < size.blocks; ++i) {
    std::memcpy(to->data() + i * size.block_bytes,
                from.data() + i * size.block_bytes, size.block_bytes);
  }
  return absl::Now() - start;
}

void Print(const char* name, const Size& size,
           std::vector<absl::Duration> times) {
  std::sort(times.begin(), times.end());
  const double megabytes =
      static_cast<double>(size.blocks) * size.block_bytes / 1e6;
  std::printf("%-8s median %9.0f MB/s  best %9.0f MB/s  median %8.3f ms\n",
              name, megabytes / absl::ToDoubleSeconds(times[times.size() / 2]),
              megabytes / absl::ToDoubleSeconds(times.front()),
              absl::ToDoubleMilliseconds(times[times.size() / 2]));
}

// Of rounds, each beside its own: what else the machine does is in both.
void PrintRatio(const char* name, const std::vector<absl::Duration>& limit,
                const std::vector<absl::Duration>& times) {
  std::vector<double> ratios;
  for (size_t i = 0; i < times.size(); ++i) {
    ratios.push_back(absl::FDivDuration(limit[i], times[i]));
  }
  std::printf("%-22s %5.1f %%\n", name, 100 * Quantile(ratios, 0.5));
}

int Main(int argc, char** argv) {
  Size size;
  if (argc > 1) size.blocks = std::atoi(argv[1]);
  if (argc > 2) size.block_bytes = std::atoi(argv[2]);
  if (argc > 3) size.rounds = std::atoi(argv[3]);
  Way shm{UcxMode::kShm, false}, shm_sums{UcxMode::kShm, true};
  Way tcp{UcxMode::kTcp, false}, tcp_sums{UcxMode::kTcp, true};
  Way* const ways[] = {&shm, &shm_sums, &tcp, &tcp_sums};
  for (Way* way : ways) way->pair = std::make_unique<Pair>(way->mode, size);
  SocketPair socket(size);
  for (Way* way : ways) way->pair->Start(way->mode, way->checksums);
  const std::vector<char> from(size.blocks * size.block_bytes, 1);
  std::vector<char> to(from.size());
  for (Way* way : ways) way->pair->ImportOnce();  // Connects and maps.
  CopyOnce(size, from, &to);
  socket.ReadOnce(&to);

  std::vector<absl::Duration> copy_times, socket_times;
  for (int i = 0; i < size.rounds; ++i) {
    copy_times.push_back(CopyOnce(size, from, &to));
    socket_times.push_back(socket.ReadOnce(&to));
    for (Way* way : ways) way->times.push_back(way->pair->ImportOnce());
  }
  std::printf("%u blocks of %zu bytes, %d rounds\n", size.blocks,
              size.block_bytes, size.rounds);
  Print("memcpy", size, copy_times);
  Print("shm", size, shm.times);
  Print("shm+sums", size, shm_sums.times);
  Print("socket", size, socket_times);
  Print("tcp", size, tcp.times);
  Print("tcp+sums", size, tcp_sums.times);
  PrintRatio("shm over memcpy", copy_times, shm.times);
  PrintRatio("tcp over plain socket", socket_times, tcp.times);
  PrintRatio("shm+sums over shm", shm.times, shm_sums.times);
  PrintRatio("tcp+sums over tcp", tcp.times, tcp_sums.times);
  return 0;
}

}  // namespace
}  // namespace baton

int main(int argc, char** argv) { return baton::Main(argc, argv); }
