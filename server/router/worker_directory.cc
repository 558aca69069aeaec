#include "server/router/worker_directory.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace baton {
namespace {

constexpr std::string_view kDnsPrefix = "dns:";

std::optional<v1::WorkerRole> FindRole(const std::string& word) {
  if (word == "prefill") return v1::WORKER_ROLE_PREFILL;
  if (word == "decode") return v1::WORKER_ROLE_DECODE;
  if (word == "unified") return v1::WORKER_ROLE_UNIFIED;
  return std::nullopt;
}

bool IsPort(const std::string& text) {
  int port = 0;
  return text.find_first_not_of("0123456789") == std::string::npos &&
         absl::SimpleAtoi(text, &port) && port >= 1 && port <= 65535;
}

bool IsHost(const std::string& host) {
  const bool is_v6 =
      host.size() > 2 && host.front() == '[' && host.back() == ']';
  const std::string bare = is_v6 ? host.substr(1, host.size() - 2) : host;
  return !bare.empty() &&
         bare.find_first_of(is_v6 ? "[] \t" : "[]: \t") == std::string::npos;
}

// An empty optional: the line says nothing.
absl::StatusOr<std::optional<WorkerEntry>> ParseLine(const std::string& line) {
  const std::string text = line.substr(0, line.find('#'));
  const std::vector<std::string> words =
      absl::StrSplit(text, absl::ByAnyChar(" \t\r"), absl::SkipEmpty());
  if (words.empty()) return std::optional<WorkerEntry>();
  if (words.size() != 2) {
    return absl::InvalidArgumentError("is not a role and an address");
  }
  const std::optional<v1::WorkerRole> role = FindRole(words[0]);
  if (!role.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", absl::CHexEscape(words[0]),
                     "' is not prefill, decode or unified"));
  }
  absl::StatusOr<WorkerEntry> entry = ParseWorkerEntry(*role, words[1]);
  if (!entry.ok()) return entry.status();
  return std::optional<WorkerEntry>(*std::move(entry));
}

}  // namespace

absl::StatusOr<WorkerEntry> ParseWorkerEntry(v1::WorkerRole role,
                                             std::string_view text) {
  WorkerEntry entry;
  entry.role = role;
  entry.is_dns_name = text.starts_with(kDnsPrefix);
  const std::string rest(
      text.substr(entry.is_dns_name ? kDnsPrefix.size() : 0));
  const size_t colon = rest.rfind(':');
  if (colon != std::string::npos) {
    entry.host = rest.substr(0, colon);
    entry.port = rest.substr(colon + 1);
  }
  if (!IsHost(entry.host) || !IsPort(entry.port)) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", absl::CHexEscape(std::string(text)), "' is not ",
                     entry.is_dns_name ? "dns:NAME:PORT" : "host:port"));
  }
  return entry;
}

absl::StatusOr<std::vector<WorkerEntry>> ParseWorkersFile(
    std::string_view path, std::string_view text) {
  std::vector<WorkerEntry> entries;
  size_t number = 0;
  const auto error = [&](std::string_view problem) {
    return absl::InvalidArgumentError(absl::StrCat(
        std::string(path), ":", number, ": ", std::string(problem)));
  };
  for (const auto line : absl::StrSplit(std::string(text), '\n')) {
    ++number;
    absl::StatusOr<std::optional<WorkerEntry>> entry =
        ParseLine(std::string(line));
    if (!entry.ok()) return error(std::string(entry.status().message()));
    if (!entry->has_value()) continue;
    if (entries.size() == kMaxWorkers) {
      return error(absl::StrCat("is one more than ", kMaxWorkers, " workers"));
    }
    entries.push_back(**std::move(entry));
  }
  return entries;
}

void WorkerDirectory::SetFile(std::vector<WorkerEntry> entries) {
  from_file_ = std::move(entries);
  const std::set<std::string> names = Names();
  std::erase_if(hosts_, [&names](const auto& item) {
    return !names.contains(item.first);
  });
}

std::set<std::string> WorkerDirectory::Names() const {
  std::set<std::string> names;
  for (const auto* entries : {&from_flags_, &from_file_}) {
    for (const WorkerEntry& entry : *entries) {
      if (entry.is_dns_name) names.insert(entry.host);
    }
  }
  return names;
}

void WorkerDirectory::SetAddresses(const std::string& name,
                                   std::vector<std::string> hosts) {
  if (!Names().contains(name)) return;
  const auto is_v6 = [](const std::string& host) { return host[0] == '['; };
  if (!std::all_of(hosts.begin(), hosts.end(), is_v6)) {
    std::erase_if(hosts, is_v6);
  }
  hosts_[name] = std::move(hosts);
}

size_t WorkerDirectory::num_addresses(const std::string& name) const {
  const auto found = hosts_.find(name);
  return found == hosts_.end() ? 0 : found->second.size();
}

std::vector<WorkerAddress> WorkerDirectory::Workers() const {
  std::vector<WorkerAddress> workers;
  for (const WorkerEntry& entry : from_flags_) AddTo(&workers, entry);
  for (const WorkerEntry& entry : from_file_) AddTo(&workers, entry);
  return workers;
}

void WorkerDirectory::AddTo(std::vector<WorkerAddress>* workers,
                            const WorkerEntry& entry) const {
  const auto add = [&](const std::string& host) {
    workers->push_back({absl::StrCat(host, ":", entry.port), entry.role});
  };
  if (!entry.is_dns_name) return add(entry.host);
  const auto found = hosts_.find(entry.host);
  if (found == hosts_.end()) return;
  for (const std::string& host : found->second) add(host);
}

}  // namespace baton
