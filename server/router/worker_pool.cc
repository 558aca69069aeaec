#include "server/router/worker_pool.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "base/logging.h"
#include "server/edge/grpc_status.h"

namespace baton {
namespace {

bool IsServing(WorkerState state) {
  return state == WorkerState::kReady || state == WorkerState::kSuspect;
}

bool Holds(const std::vector<WorkerId>& workers, WorkerId id) {
  return std::find(workers.begin(), workers.end(), id) != workers.end();
}

RouteRank RankOf(WorkerState state, EjectionState ejection, bool avoided) {
  if (state == WorkerState::kReady && ejection == EjectionState::kIn) {
    return avoided ? RouteRank::kReady : RouteRank::kUntried;
  }
  return IsServing(state) ? RouteRank::kSuspect : RouteRank::kNone;
}

bool Meets(const v1::GetWorkerInfoResponse& info, const RouteNeeds& needs) {
  return info.max_context_tokens() >= needs.context_tokens &&
         (needs.fingerprint.empty() || info.fingerprint() == needs.fingerprint);
}

constexpr std::string_view kRoleField = "role";

// As operators write it: "prefill".
std::string RoleName(v1::WorkerRole role) {
  const std::string name = v1::WorkerRole_Name(role);
  return absl::AsciiStrToLower(absl::StripPrefix(name, "WORKER_ROLE_"));
}

std::string Differs(const std::string& theirs, const std::string& ours) {
  return absl::StrCat(theirs, " differs from ", ours);
}

bool IsPair(v1::WorkerRole one, v1::WorkerRole other) {
  return (one == v1::WORKER_ROLE_PREFILL && other == v1::WORKER_ROLE_DECODE) ||
         (one == v1::WORKER_ROLE_DECODE && other == v1::WORKER_ROLE_PREFILL);
}

bool ShareTransport(const v1::GetWorkerInfoResponse& one,
                    const v1::GetWorkerInfoResponse& other) {
  const auto& theirs = other.kv_transports();
  return std::any_of(one.kv_transports().begin(), one.kv_transports().end(),
                     [&theirs](const std::string& way) {
                       return std::find(theirs.begin(), theirs.end(), way) !=
                              theirs.end();
                     });
}

// That long at most it may be full by one word of its own.
constexpr absl::Duration kLongestFull = absl::Seconds(5);

// A probe is not to be believed more than that.
constexpr uint32_t kMaxLocalRanks = 1024;

uint32_t NumRanks(const v1::GetWorkerInfoResponse& info) {
  return std::clamp(info.num_local_ranks(), 1u, kMaxLocalRanks);
}

void Report(const v1::GetLoadResponse& load, std::vector<WorkerLoad>* known) {
  if (load.ranks_size() == 0) {
    known->front().Report(load.running_requests(), load.waiting_requests());
    return;
  }
  const size_t num_ranks = std::min<size_t>(load.ranks_size(), known->size());
  for (size_t i = 0; i < num_ranks; ++i) {
    const v1::RankLoad& rank = load.ranks(static_cast<int>(i));
    (*known)[i].Report(rank.running_requests(), rank.waiting_requests());
  }
}

}  // namespace

int64_t WorkerPool::Worker::num_in_flight() const {
  int64_t sum = 0;
  for (const WorkerLoad& load : loads) sum += load.in_flight();
  return sum;
}

WorkerPool::WorkerPool(Options options)
    : options_(std::move(options)),
      clock_(options_.clock != nullptr ? *options_.clock : system_clock_),
      ejections_(v1::WorkerRole_ARRAYSIZE, OutlierEjection(options_.ejection)) {
  absl::MutexLock lock(&mutex_);
  for (const WorkerAddress& where : options_.workers) Add(where);
  for (int role = 0; role < v1::WorkerRole_ARRAYSIZE; ++role) {
    policies_[role] = options_.make_policy(static_cast<v1::WorkerRole>(role));
  }
}

WorkerId WorkerPool::Join(WorkerAddress where) {
  absl::MutexLock lock(&mutex_);
  return Add(std::move(where));
}

WorkerId WorkerPool::Add(WorkerAddress where) {
  const WorkerId id = next_id_;
  ++next_id_;
  ejections_[where.role].Join(id);
  workers_.try_emplace(id, id, std::move(where));
  return id;
}

void WorkerPool::Leave(WorkerId id) {
  {
    absl::MutexLock lock(&mutex_);
    Worker* const worker = FindMember(id);
    CHECK(worker != nullptr) << "worker " << id << " is no member";
    MoveTo(worker, WorkerState::kLeft,
           absl::StrCat(worker->num_in_flight(), " requests go on"));
    if (!MaybeForget(id)) return;
  }
  if (options_.on_gone) options_.on_gone(id);
}

std::vector<WorkerPool::Member> WorkerPool::members() const {
  absl::MutexLock lock(&mutex_);
  std::vector<Member> members;
  for (const auto& [id, worker] : workers_) {
    if (worker.state == WorkerState::kLeft) continue;
    members.push_back({id, worker.where});
  }
  return members;
}

WorkerPool::Worker* WorkerPool::FindMember(WorkerId id) {
  const auto found = workers_.find(id);
  return found == workers_.end() || found->second.state == WorkerState::kLeft
             ? nullptr
             : &found->second;
}

bool WorkerPool::MaybeForget(WorkerId id) {
  const auto found = workers_.find(id);
  const Worker& worker = found->second;
  if (worker.state != WorkerState::kLeft || worker.num_in_flight() > 0) {
    return false;
  }
  workers_.erase(found);
  return true;
}

void WorkerPool::OnProbe(WorkerId id, const v1::GetWorkerInfoResponse& info,
                         const v1::GetLoadResponse& load) {
  absl::MutexLock lock(&mutex_);
  Worker* const worker = FindMember(id);
  if (worker == nullptr) return;
  if (worker->info.incarnation() != 0 &&
      worker->info.incarnation() != info.incarnation()) {
    LOG(INFO) << "worker " << worker->where.address << " has restarted";
    ejections_[worker->where.role].OnRestart(id);
    policies_[worker->where.role]->Forget(id.value());
    worker->full_until = absl::InfinitePast();
  }
  worker->info = info;
  // Ranks that are gone keep the requests that are on their way back.
  worker->loads.resize(std::max<size_t>(worker->loads.size(), NumRanks(info)));
  Report(load, &worker->loads);
  Judge(id, worker);
}

void WorkerPool::Judge(WorkerId id, Worker* worker) {
  const Refusal refusal = FindRefusal(id, worker->info);
  worker->refused_for = refusal.field;
  // Roles are no secret, and a list that is wrong is the likely cause.
  if (refusal.field == kRoleField) {
    absl::StrAppend(&worker->refused_for, " (", refusal.reason, ")");
  }
  if (refusal.field.empty()) {
    MoveTo(worker, WorkerState::kReady, "");
    if (CanServe()) last_served_ = ServedNow();
  } else {
    MoveTo(worker, WorkerState::kRefused,
           absl::StrCat(std::string(refusal.field), " ", refusal.reason));
  }
}

void WorkerPool::OnLoad(WorkerId id, const v1::GetLoadResponse& load) {
  absl::MutexLock lock(&mutex_);
  Worker* const worker = FindMember(id);
  if (worker != nullptr) Report(load, &worker->loads);
}

void WorkerPool::OnProbeFailed(WorkerId id, const absl::Status& why) {
  absl::MutexLock lock(&mutex_);
  Worker* const worker = FindMember(id);
  if (worker == nullptr) return;
  MoveTo(worker, WorkerState::kUnhealthy,
         absl::StrCat(absl::StatusCodeToString(why.code()), ": ",
                      absl::CHexEscape(why.message())));
}

WorkerPool::Refusal WorkerPool::FindRefusal(
    WorkerId id, const v1::GetWorkerInfoResponse& info) const {
  const v1::WorkerRole role = workers_.at(id).where.role;
  if (info.role() != role) {
    return {kRoleField, absl::StrCat(RoleName(info.role()), ", listed as ",
                                     RoleName(role))};
  }
  if (info.text_hash() != options_.text_hash) {
    return {"text_hash", Differs(info.text_hash(), options_.text_hash)};
  }
  if (info.vocab_size() != options_.vocab_size) {
    return {"vocab_size", Differs(absl::StrCat(info.vocab_size()),
                                  absl::StrCat(options_.vocab_size))};
  }
  for (const auto& [other_id, other] : workers_) {
    if (other_id == id || !IsServing(other.state)) continue;
    Refusal refusal = FindRefusal(info, other);
    if (!refusal.field.empty()) return refusal;
  }
  return {};
}

// Whatever two workers are picked for a request, they must fit each other.
WorkerPool::Refusal WorkerPool::FindRefusal(
    const v1::GetWorkerInfoResponse& info, const Worker& other) const {
  if (other.info.fingerprint() != info.fingerprint()) {
    return {"fingerprint", Differs(info.fingerprint(),
                                   absl::StrCat(other.info.fingerprint(),
                                                " of ", other.where.address))};
  }
  if (IsPair(info.role(), other.where.role) &&
      !ShareTransport(info, other.info)) {
    return {"kv_transports",
            absl::StrCat(absl::StrJoin(info.kv_transports(), ","),
                         " has nothing in common with ",
                         absl::StrJoin(other.info.kv_transports(), ","), " of ",
                         other.where.address)};
  }
  return {};
}

// The one writer of a worker's state.
void WorkerPool::MoveTo(Worker* worker, WorkerState to, std::string reason) {
  CHECK(IsLegalTransition(worker->state, to))
      << WorkerStateName(worker->state) << " to " << WorkerStateName(to);
  // A worker may be wrong in another way now; that others fail differently
  // from one time to the next says nothing.
  if (worker->state == to &&
      (to != WorkerState::kRefused || worker->reason == reason)) {
    return;
  }
  const bool is_lost = IsServing(worker->state) && !IsServing(to);
  worker->state = to;
  worker->reason = std::move(reason);
  OutlierEjection& ejection = ejections_[worker->where.role];
  ejection.SetServing(worker->id, IsServing(to));
  if (to == WorkerState::kLeft) {
    ejection.Leave(worker->id);
    policies_[worker->where.role]->Forget(worker->id.value());
  }
  if (to == WorkerState::kReady) {
    LOG(INFO) << "worker " << worker->where.address << " ready";
  } else if (to == WorkerState::kLeft) {
    LOG(INFO) << "worker " << worker->where.address
              << " left: " << worker->reason;
  } else {
    LOG(WARNING) << "worker " << worker->where.address << ' '
                 << WorkerStateName(to) << ": " << worker->reason;
  }
  // Those that did not fit it are asked nothing more: they may fit now.
  for (auto& [id, other] : workers_) {
    if (is_lost && other.state == WorkerState::kRefused) Judge(id, &other);
  }
  if (const bool ready = CanServe(); ready != ready_) {
    ready_ = ready;
    if (options_.on_ready_change) options_.on_ready_change(ready);
  }
}

absl::StatusOr<Route> WorkerPool::FindRoute(const RouteNeeds& needs) {
  CHECK(needs.worst != RouteRank::kNone);
  absl::MutexLock lock(&mutex_);
  const Candidates prefill = Find(v1::WORKER_ROLE_PREFILL, needs);
  const Candidates decode = Find(v1::WORKER_ROLE_DECODE, needs);
  const Candidates unified = Find(v1::WORKER_ROLE_UNIFIED, needs);
  const RouteRank pair_rank = std::max(prefill.rank, decode.rank);
  if (std::min(pair_rank, unified.rank) > needs.worst) return NobodyServes();
  Route route;
  if (pair_rank <= unified.rank) {
    const WorkerRank source =
        Take(v1::WORKER_ROLE_PREFILL, prefill, needs.prefix);
    route.prefill = source.worker;
    route.prefill_rank = source.rank;
    route.prefill_call = source.call;
  }
  const WorkerRank target =
      pair_rank <= unified.rank
          ? Take(v1::WORKER_ROLE_DECODE, decode, needs.prefix)
          : Take(v1::WORKER_ROLE_UNIFIED, unified, needs.prefix);
  route.decode = target.worker;
  route.decode_rank = target.rank;
  route.decode_call = target.call;
  route.fingerprint = workers_.at(route.decode).info.fingerprint();
  return route;
}

WorkerPool::Candidates WorkerPool::Find(v1::WorkerRole role,
                                        const RouteNeeds& needs) {
  const absl::Time now = clock_.Now();
  Candidates best;
  for (const auto& [id, worker] : workers_) {
    if (worker.where.role != role || !Meets(worker.info, needs)) continue;
    if (Holds(needs.exclude, id)) continue;
    const bool is_full = now < worker.full_until;
    const EjectionState ejection = ejections_[role].StateAt(id, now);
    if (worker.state == WorkerState::kReady && needs.avoid.empty() &&
        !is_full && ejection == EjectionState::kReturning) {
      return {.workers = {id}, .rank = RouteRank::kUntried};
    }
    const RouteRank rank =
        RankOf(worker.state, ejection, is_full || Holds(needs.avoid, id));
    if (rank == RouteRank::kNone || rank > best.rank) continue;
    if (rank < best.rank) best = {.workers = {}, .rank = rank};
    best.workers.push_back(id);
  }
  return best;
}

WorkerPool::WorkerRank WorkerPool::Take(v1::WorkerRole role,
                                        const Candidates& candidates,
                                        std::span<const PrefixKey> prefix) {
  std::vector<WorkerRank> ranks;
  std::vector<int64_t> loads;
  std::vector<RankName> names;
  for (const WorkerId id : candidates.workers) {
    const Worker& worker = workers_.at(id);
    for (uint32_t rank = 0; rank < NumRanks(worker.info); ++rank) {
      ranks.push_back({id, rank});
      loads.push_back(worker.loads[rank].Estimate());
      names.push_back({.worker = id.value(),
                       .rank = rank,
                       .incarnation = worker.info.incarnation()});
    }
  }
  WorkerRank taken = ranks[policies_[role]->Pick(
      {.loads = loads, .names = names, .prefix = prefix})];
  workers_.at(taken.worker).loads[taken.rank].RequestSent();
  taken.call = ejections_[role].OnCallBegan(taken.worker, clock_.Now());
  return taken;
}

void WorkerPool::OnRequestEnded(
    WorkerId id, uint32_t rank,
    const std::optional<v1::GetLoadResponse>& load) {
  {
    absl::MutexLock lock(&mutex_);
    std::vector<WorkerLoad>& known = workers_.at(id).loads;
    known[rank].RequestEnded();
    if (load.has_value()) Report(*load, &known);
    if (!MaybeForget(id)) return;
  }
  if (options_.on_gone) options_.on_gone(id);
}

void WorkerPool::OnCallAnswered(WorkerId id, uint64_t call) {
  absl::MutexLock lock(&mutex_);
  Worker* const worker = FindMember(id);
  if (worker == nullptr) return;
  ejections_[worker->where.role].OnAnswered(id, call, clock_.Now());
}

void WorkerPool::OnCallEnded(WorkerId id, uint64_t call, CallOutcome outcome) {
  absl::MutexLock lock(&mutex_);
  Worker* const worker = FindMember(id);
  if (worker == nullptr) return;
  const std::optional<EjectionReason> why =
      ejections_[worker->where.role].OnCallEnded(id, call, outcome,
                                                 clock_.Now());
  if (!why.has_value()) return;
  LOG(WARNING) << "worker " << worker->where.address << " ejected reason "
               << EjectionReasonName(*why);
  if (options_.on_ejection) options_.on_ejection(*why);
}

int WorkerPool::num_ejected() const {
  absl::MutexLock lock(&mutex_);
  int sum = 0;
  for (const OutlierEjection& ejection : ejections_) sum += ejection.num_out();
  return sum;
}

void WorkerPool::OnSuspect(WorkerId id) {
  absl::MutexLock lock(&mutex_);
  Worker* const worker = FindMember(id);
  if (worker == nullptr || !IsServing(worker->state)) return;
  MoveTo(worker, WorkerState::kSuspect, "unavailable to a request");
}

void WorkerPool::OnFull(WorkerId id, absl::Duration delay) {
  absl::MutexLock lock(&mutex_);
  Worker* const worker = FindMember(id);
  if (worker == nullptr) return;
  worker->full_until = clock_.Now() + std::min(delay, kLongestFull);
}

// For clients: it names no worker.
absl::Status WorkerPool::NobodyServes() const {
  std::set<std::string> fields;
  for (const auto& [id, worker] : workers_) {
    if (worker.state == WorkerState::kRefused) {
      fields.insert(worker.refused_for);
    }
  }
  std::string text = "no worker can serve";
  if (!fields.empty()) {
    absl::StrAppend(&text, "; refused for ", absl::StrJoin(fields, ", "));
  }
  return WithReason(
      WithRetryDelay(absl::UnavailableError(text), absl::Seconds(1)),
      "NO_WORKER");
}

bool WorkerPool::Serves(v1::WorkerRole role) const {
  return std::any_of(
      workers_.begin(), workers_.end(), [role](const auto& member) {
        const Worker& worker = member.second;
        return worker.where.role == role && IsServing(worker.state);
      });
}

bool WorkerPool::CanServe() const {
  return (Serves(v1::WORKER_ROLE_PREFILL) && Serves(v1::WORKER_ROLE_DECODE)) ||
         Serves(v1::WORKER_ROLE_UNIFIED);
}

void WorkerPool::WaitUntilReady() const {
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(this, &WorkerPool::CanServe));
}

absl::StatusOr<ServedModel> WorkerPool::Served() const {
  absl::MutexLock lock(&mutex_);
  if (CanServe()) return ServedNow();
  if (last_served_.has_value()) return *last_served_;
  return NobodyServes();
}

ServedModel WorkerPool::ServedNow() const {
  ServedModel served = {.fingerprint = "", .max_context_tokens = UINT32_MAX};
  for (const auto& [id, worker] : workers_) {
    if (!IsServing(worker.state)) continue;
    served.max_context_tokens =
        std::min(served.max_context_tokens, worker.info.max_context_tokens());
    served.fingerprint = worker.info.fingerprint();
  }
  return served;
}

int64_t WorkerPool::num_in_flight() const {
  absl::MutexLock lock(&mutex_);
  int64_t sum = 0;
  for (const auto& [id, worker] : workers_) sum += worker.num_in_flight();
  return sum;
}

WorkerState WorkerPool::state(WorkerId id) const {
  absl::MutexLock lock(&mutex_);
  const auto found = workers_.find(id);
  return found == workers_.end() ? WorkerState::kLeft : found->second.state;
}

std::array<int, kNumWorkerStates> WorkerPool::CountStates(
    std::optional<v1::WorkerRole> role) const {
  absl::MutexLock lock(&mutex_);
  std::array<int, kNumWorkerStates> counts = {};
  for (const auto& [id, worker] : workers_) {
    if (role.has_value() && worker.where.role != *role) continue;
    ++counts[static_cast<int>(worker.state)];
  }
  return counts;
}

}  // namespace baton
