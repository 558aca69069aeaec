#include "server/router/worker_discovery.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/logging.h"
#include "base/status_macros.h"

namespace baton {
namespace {

std::string HostOf(const sockaddr& address) {
  char text[INET6_ADDRSTRLEN] = {};
  if (address.sa_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    inet_ntop(AF_INET, &v4.sin_addr, text, sizeof(text));
    return text;
  }
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
  inet_ntop(AF_INET6, &v6.sin6_addr, text, sizeof(text));
  return absl::StrCat("[", text, "]");
}

constexpr char kKept[] = "the workers listed before are kept";
// How long a file must be the same before it is believed: somebody may be
// writing it.
constexpr absl::Duration kSettleTime = absl::Milliseconds(50);

absl::StatusOr<std::string> ReadText(const std::string& path) {
  // A named pipe would be waited for, and with it the end of the process.
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {
    return absl::NotFoundError(absl::StrCat(path, ": cannot be read"));
  }
  std::ifstream file(path, std::ios::binary);
  std::string text(kMaxWorkersFileBytes + 1, '\0');
  if (!file.read(text.data(), static_cast<std::streamsize>(text.size())) &&
      (file.bad() || !file.eof())) {
    return absl::NotFoundError(absl::StrCat(path, ": cannot be read"));
  }
  text.resize(static_cast<size_t>(file.gcount()));
  if (text.size() > kMaxWorkersFileBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": has more than ", kMaxWorkersFileBytes, " bytes"));
  }
  return text;
}

}  // namespace

void LogWarning(const std::string& line) { LOG(WARNING) << line; }

absl::StatusOr<std::vector<std::string>> LookUpHosts(const std::string& name) {
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;  // One entry an address.
  addrinfo* found = nullptr;
  const int error = getaddrinfo(name.c_str(), nullptr, &hints, &found);
  if (error != 0) return absl::UnavailableError(gai_strerror(error));
  std::set<std::string> hosts;
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    if (one->ai_family != AF_INET && one->ai_family != AF_INET6) continue;
    hosts.insert(HostOf(*one->ai_addr));
  }
  freeaddrinfo(found);
  return std::vector<std::string>(hosts.begin(), hosts.end());
}

absl::StatusOr<std::vector<WorkerEntry>> ReadWorkersFile(
    const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadText(path));
  return ParseWorkersFile(path, text);
}

// Thread-safe. What both threads use.
class WorkerDiscovery::State {
 public:
  explicit State(Options options)
      : options_(std::move(options)), directory_(options_.entries) {}

  void Begin(std::vector<WorkerEntry> from_file) {
    absl::MutexLock lock(&mutex_);
    directory_.SetFile(std::move(from_file));
    OnNewEntries();
    Publish();
  }
  void Stop() {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }

  void WatchFile() {
    std::string trouble;               // As last told; empty: none.
    std::optional<std::string> seen;   // By the last reading.
    std::optional<std::string> taken;  // Or found wrong.
    while (!StopsWithin(seen == taken ? options_.file_interval : kSettleTime)) {
      absl::StatusOr<std::string> text = ReadText(options_.workers_file);
      if (!text.ok()) {
        Tell(text.status(), kKept, &trouble);
        seen = taken = std::nullopt;
        continue;
      }
      const bool settled = seen == *text;
      seen = *std::move(text);
      if (settled && seen != taken) {
        taken = seen;
        TakeFile(*taken, &trouble);
      }
    }
  }

  void LookUpNames() {
    std::map<std::string, std::string> troubles;  // By name.
    for (std::set<std::string> names = AwaitNames(); !names.empty();
         names = AwaitNames()) {
      std::erase_if(troubles, [&names](const auto& trouble) {
        return !names.contains(trouble.first);
      });
      for (const std::string& name : names) {
        auto hosts = options_.look_up(name);
        if (!hosts.ok()) {
          hosts = absl::UnavailableError(absl::StrCat(
              "dns ", name, ": ", std::string(hosts.status().message())));
        }
        OnAnswer(name, std::move(hosts), &troubles[name]);
      }
    }
  }

  bool has_file() const { return !options_.workers_file.empty(); }

 private:
  // Once for each new trouble, and once when it is over.
  void Tell(const absl::Status& what, const std::string& kept,
            std::string* trouble) const {
    std::string line = absl::StrCat(std::string(what.message()), "; ", kept);
    if (line == *trouble) return;
    options_.log(line);
    *trouble = std::move(line);
  }
  void TellOver(const std::string& line, std::string* trouble) const {
    if (!trouble->empty()) options_.log(line);
    trouble->clear();
  }

  bool StopsWithin(absl::Duration duration) {
    absl::MutexLock lock(&mutex_);
    return mutex_.AwaitWithTimeout(absl::Condition(&stopping_), duration);
  }

  void TakeFile(const std::string& text, std::string* trouble) {
    auto entries = ParseWorkersFile(options_.workers_file, text);
    if (absl::StripAsciiWhitespace(text).empty()) {
      // As while somebody writes it anew in place; a comment says that it is
      // meant so.
      entries = absl::InvalidArgumentError(
          absl::StrCat(options_.workers_file, ": is empty"));
    }
    if (!entries.ok()) {
      Tell(entries.status(), kKept, trouble);
      return;
    }
    TellOver(absl::StrCat(options_.workers_file, ": is right again"), trouble);
    absl::MutexLock lock(&mutex_);
    directory_.SetFile(*std::move(entries));
    OnNewEntries();
    Publish();
  }

  // When the next look-up is due. None: it is over.
  std::set<std::string> AwaitNames() {
    absl::MutexLock lock(&mutex_);
    mutex_.AwaitWithTimeout(absl::Condition(this, &State::IsHurried),
                            options_.dns_interval);
    mutex_.Await(absl::Condition(this, &State::HasNamesOrStops));
    if (stopping_) return {};
    new_names_ = false;
    return names_;
  }
  bool IsHurried() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stopping_ || new_names_;
  }
  bool HasNamesOrStops() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stopping_ || !names_.empty();
  }

  void OnAnswer(const std::string& name,
                absl::StatusOr<std::vector<std::string>> hosts,
                std::string* trouble) {
    absl::MutexLock lock(&mutex_);
    if (stopping_) return;
    if (!hosts.ok()) {
      Tell(hosts.status(),
           absl::StrCat(directory_.num_addresses(name), " addresses are kept"),
           trouble);
      return;
    }
    TellOver(absl::StrCat("dns ", name, ": is found again"), trouble);
    directory_.SetAddresses(name, *std::move(hosts));
    Publish();
  }

  void OnNewEntries() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    std::set<std::string> names = directory_.Names();
    for (const std::string& name : names) new_names_ |= !names_.contains(name);
    names_ = std::move(names);
  }
  // Under the lock, so that the newest list is told last.
  void Publish() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    std::vector<WorkerAddress> workers = directory_.Workers();
    if (stopping_ || told_ == workers) return;
    options_.on_change(workers);
    told_ = std::move(workers);
  }

  const Options options_;
  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  WorkerDirectory directory_ ABSL_GUARDED_BY(mutex_);
  std::optional<std::vector<WorkerAddress>> told_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string> names_ ABSL_GUARDED_BY(mutex_);  // To look up.
  bool new_names_ ABSL_GUARDED_BY(mutex_) = false;       // Among them.
};

absl::StatusOr<std::unique_ptr<WorkerDiscovery>> WorkerDiscovery::Start(
    Options options) {
  std::vector<WorkerEntry> from_file;
  if (!options.workers_file.empty()) {
    ASSIGN_OR_RETURN(from_file, ReadWorkersFile(options.workers_file));
  }
  // As the member says.
  auto state = std::make_shared<State>(std::move(options));
  state->Begin(std::move(from_file));
  return std::unique_ptr<WorkerDiscovery>(
      new WorkerDiscovery(std::move(state)));
}

// Shared: see state_.
WorkerDiscovery::WorkerDiscovery(std::shared_ptr<State> state)
    : state_(std::move(state)) {
  std::thread([shared = state_] { shared->LookUpNames(); }).detach();
  if (state_->has_file()) {
    file_thread_ = std::thread([this] { state_->WatchFile(); });
  }
}

WorkerDiscovery::~WorkerDiscovery() {
  state_->Stop();
  if (file_thread_.joinable()) file_thread_.join();
}

}  // namespace baton
