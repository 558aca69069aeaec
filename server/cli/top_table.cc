#include "server/cli/top_table.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"

namespace baton {
namespace {

using Cells = std::vector<std::string>;

constexpr char kNothing[] = "-";
constexpr double kBytesPerMegabyte = 1e6;

// The first columns are words, to the left; the others numbers, to the right.
class TextTable {
 public:
  TextTable(Cells header, size_t num_words) : num_words_(num_words) {
    Add(std::move(header));
  }
  void Add(Cells row) { rows_.push_back(std::move(row)); }
  bool empty() const { return rows_.size() == 1; }

  std::string ToString() const {
    std::string text;
    for (const Cells& row : rows_) {
      std::string line;
      for (size_t i = 0; i < row.size(); ++i) {
        const std::string gap(WidthOf(i) - row[i].size(), ' ');
        absl::StrAppend(&line, i == 0 ? "" : "  ",
                        i < num_words_ ? row[i] + gap : gap + row[i]);
      }
      absl::StrAppend(&text, line, "\n");
    }
    return text;
  }

 private:
  size_t WidthOf(size_t column) const {
    size_t width = 0;
    for (const Cells& row : rows_) width = std::max(width, row[column].size());
    return width;
  }

  const size_t num_words_;
  std::vector<Cells> rows_;  // The first one is the header.
};

// One worker at two times; `before` is null if it was not there, or was another
// process.
struct Pair {
  const WorkerSample* before = nullptr;
  const WorkerSample* now = nullptr;

  double seconds() const {
    return before == nullptr ? 0
                             : absl::ToDoubleSeconds(now->time - before->time);
  }
};

Pair PairOf(const std::vector<WorkerSample>& before,
            const std::vector<WorkerSample>& now, size_t i) {
  Pair pair = {.now = &now[i]};
  if (i < before.size() && before[i].status.ok() && now[i].status.ok() &&
      before[i].info.incarnation() == now[i].info.incarnation()) {
    pair.before = &before[i];
  }
  return pair;
}

std::optional<double> Rate(double before, double now, double seconds) {
  if (seconds <= 0 || now < before) return std::nullopt;
  return (now - before) / seconds;
}

std::string Format(std::optional<double> rate) {
  if (!rate.has_value()) return kNothing;
  return *rate < 100 ? absl::StrFormat("%.1f", *rate)
                     : absl::StrFormat("%.0f", *rate);
}

std::string FormatWait(double seconds) {
  if (seconds < 1e-3) return absl::StrFormat("%.0fus", seconds * 1e6);
  if (seconds < 1) return absl::StrFormat("%.1fms", seconds * 1e3);
  return absl::StrFormat("%.1fs", seconds);
}

std::string RoleName(v1::WorkerRole role) {
  switch (role) {
    case v1::WORKER_ROLE_PREFILL:
      return "prefill";
    case v1::WORKER_ROLE_DECODE:
      return "decode";
    case v1::WORKER_ROLE_UNIFIED:
      return "unified";
    default:
      return kNothing;
  }
}

std::string StateOf(const WorkerSample& sample) {
  switch (sample.status.code()) {
    case absl::StatusCode::kOk:
      break;
    case absl::StatusCode::kUnavailable:
      return "unreachable";
    case absl::StatusCode::kDeadlineExceeded:
      return "no-answer";
    case absl::StatusCode::kUnimplemented:
      return "no-worker";
    default:
      return absl::StatusCodeToString(sample.status.code());
  }
  if (sample.load.has_group() && !sample.load.group().is_formed()) {
    return "forming";
  }
  return sample.is_serving ? "serving" : "not-serving";
}

struct Totals {
  uint32_t answering = 0;
  uint32_t ranks = 0;
  v1::RankLoad load = {};
  double prompt_rate = 0;
  double token_rate = 0;
  double kv_rate = 0;
};

void AddLoad(const v1::RankLoad& rank, v1::RankLoad* sum) {
  sum->set_running_requests(sum->running_requests() + rank.running_requests());
  sum->set_waiting_requests(sum->waiting_requests() + rank.waiting_requests());
  sum->set_free_kv_blocks(sum->free_kv_blocks() + rank.free_kv_blocks());
  sum->set_total_kv_blocks(sum->total_kv_blocks() + rank.total_kv_blocks());
  sum->set_exported_kv_blocks(sum->exported_kv_blocks() +
                              rank.exported_kv_blocks());
  sum->set_importing_kv_blocks(sum->importing_kv_blocks() +
                               rank.importing_kv_blocks());
}

void AppendLoad(const v1::RankLoad& rank, Cells* row) {
  for (const uint64_t count :
       {uint64_t{rank.running_requests()}, uint64_t{rank.waiting_requests()},
        rank.free_kv_blocks(), rank.total_kv_blocks(),
        rank.exported_kv_blocks(), rank.importing_kv_blocks()}) {
    row->push_back(absl::StrCat(count));
  }
}

// Of one rank, and into the totals.
Cells RankRow(const std::string& endpoint, const Pair& pair, int index,
              Totals* totals) {
  const v1::GetLoadResponse& load = pair.now->load;
  const v1::RankLoad& now = load.ranks(index);
  const bool was_there =
      pair.before != nullptr && index < pair.before->load.ranks_size();
  const v1::RankLoad& before = was_there ? pair.before->load.ranks(index) : now;
  const double seconds = was_there ? pair.seconds() : 0;
  const auto rate = [seconds](uint64_t from, uint64_t to) {
    return Rate(static_cast<double>(from), static_cast<double>(to), seconds);
  };
  const auto prompts =
      rate(before.computed_prompt_tokens(), now.computed_prompt_tokens());
  const auto tokens = rate(before.drawn_tokens(), now.drawn_tokens());
  // The process's, on its first line.
  const auto kv = index > 0 || pair.before == nullptr
                      ? std::nullopt
                      : rate(pair.before->load.imported_kv_bytes(),
                             load.imported_kv_bytes());
  ++totals->ranks;
  AddLoad(now, &totals->load);
  totals->prompt_rate += prompts.value_or(0);
  totals->token_rate += tokens.value_or(0);
  totals->kv_rate += kv.value_or(0);

  Cells row = {endpoint, RoleName(pair.now->info.role()), StateOf(*pair.now),
               absl::StrCat(load.group().rank_offset() + index)};
  AppendLoad(now, &row);
  row.push_back(Format(rate(before.prefill_steps(), now.prefill_steps())));
  row.push_back(Format(rate(before.decode_steps(), now.decode_steps())));
  row.push_back(Format(prompts));
  row.push_back(Format(tokens));
  row.push_back(kv ? Format(*kv / kBytesPerMegabyte) : kNothing);
  return row;
}

Cells TotalRow(const Totals& totals, size_t num_workers, bool has_rates) {
  Cells row = {"total", kNothing,
               absl::StrCat(totals.answering, "/", num_workers),
               absl::StrCat(totals.ranks)};
  AppendLoad(totals.load, &row);
  row.push_back(kNothing);
  row.push_back(kNothing);
  for (const double rate : {totals.prompt_rate, totals.token_rate,
                            totals.kv_rate / kBytesPerMegabyte}) {
    row.push_back(has_rates ? Format(rate) : kNothing);
  }
  return row;
}

// Of a process in a group.
Cells GroupRow(const std::string& endpoint, const Pair& pair) {
  const v1::GroupLoad& now = pair.now->load.group();
  const v1::GroupLoad& before =
      pair.before == nullptr ? now : pair.before->load.group();
  const auto steps = [](const v1::GroupLoad& group) {
    return static_cast<double>(group.decode_steps() + group.all_prefills() +
                               group.any_prefills() +
                               group.unopposed_prefills());
  };
  const auto votes = static_cast<double>(now.votes() - before.votes());
  const auto mean = [votes](double from, double to) {
    return votes > 0 ? FormatWait((to - from) / votes) : kNothing;
  };
  const uint32_t first = now.rank_offset();
  Cells row = {endpoint,
               absl::StrCat(first, "-", first + pair.now->load.ranks_size() - 1,
                            "/", now.ep_size()),
               absl::StrCat(now.epoch()),
               Format(Rate(steps(before), steps(now), pair.seconds()))};
  for (const uint64_t count :
       {now.all_prefills(), now.any_prefills(), now.unopposed_prefills(),
        now.prefill_fallbacks(), now.empty_rank_steps()}) {
    row.push_back(absl::StrCat(count));
  }
  row.push_back(mean(before.vote_wait_seconds(), now.vote_wait_seconds()));
  row.push_back(mean(before.exposed_vote_wait_seconds(),
                     now.exposed_vote_wait_seconds()));
  const double balance =
      now.expert_load_ratio_sum() - before.expert_load_ratio_sum();
  const auto loads =
      static_cast<double>(now.expert_load_steps() - before.expert_load_steps());
  row.push_back(loads > 0 ? absl::StrFormat("%.2f", balance / loads)
                          : kNothing);
  for (const uint64_t count :
       {now.dropped_messages(), now.epochs_ended(), now.watchdog_firings()}) {
    row.push_back(absl::StrCat(count));
  }
  return row;
}

}  // namespace

std::string TopTables(const std::vector<std::string>& endpoints,
                      const std::vector<WorkerSample>& before,
                      const std::vector<WorkerSample>& now) {
  const Cells rank_columns = {"WORKER",   "ROLE",      "STATE",     "RANK",
                              "RUN",      "WAIT",      "FREE",      "BLOCKS",
                              "EXPORTED", "IMPORTING", "PREFILL/S", "DECODE/S",
                              "PROMPT/S", "TOKENS/S",  "KV_MB/S"};
  TextTable ranks(rank_columns, 3);
  TextTable groups({"WORKER", "RANKS", "EPOCH", "STEPS/S", "ALL", "ANY",
                    "UNOPPOSED", "FALLBACKS", "EMPTY", "VOTE", "EXPOSED",
                    "BALANCE", "DROPPED", "ENDED", "WATCHDOG"},
                   2);
  Totals totals;
  bool has_rates = false;
  for (size_t i = 0; i < endpoints.size(); ++i) {
    const Pair pair = PairOf(before, now, i);
    has_rates |= pair.before != nullptr;
    totals.answering += now[i].status.ok() ? 1 : 0;
    for (int rank = 0; rank < now[i].load.ranks_size(); ++rank) {
      ranks.Add(RankRow(endpoints[i], pair, rank, &totals));
    }
    if (now[i].load.has_group()) groups.Add(GroupRow(endpoints[i], pair));
    if (now[i].load.ranks_size() > 0) continue;
    Cells row(rank_columns.size(), kNothing);
    row[0] = endpoints[i];
    row[1] = RoleName(now[i].info.role());
    row[2] = StateOf(now[i]);
    ranks.Add(std::move(row));
  }
  ranks.Add(TotalRow(totals, endpoints.size(), has_rates));
  return groups.empty() ? ranks.ToString()
                        : ranks.ToString() + "\n" + groups.ToString();
}

}  // namespace baton
