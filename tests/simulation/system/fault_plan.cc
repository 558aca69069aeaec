#include "tests/simulation/system/fault_plan.h"

#include <algorithm>
#include <variant>

#include "base/logging.h"
#include "comm/kv_transfer_message.h"

namespace baton {

void FaultPlan::Start() {
  if (!options_.kinds.empty()) ScheduleNext();
}

void FaultPlan::ScheduleNext() {
  const absl::Duration pause =
      loop_.dice().Between(options_.shortest_pause, options_.longest_pause);
  loop_.After(pause, [this] {
    if (stopped_) return;
    const std::vector<FaultKind>& kinds = options_.kinds;
    const FaultKind kind = kinds[loop_.dice().Bits() % kinds.size()];
    if (Happen(kind)) {
      loop_.Note(kFaultNames[static_cast<size_t>(kind)], 0);
      any_happened_ = true;
    }
    ScheduleNext();
  });
}

void FaultPlan::Stop() {
  stopped_ = true;
  pull_crash_.reset();
  kv_blocked_.clear();
  for (const Link& link : std::exchange(blocked_, {})) {
    parts_.calls->Heal(link.first, link.second);
  }
  for (SimulatedWorker* worker : parts_.workers) RestartIfDown(worker);
  for (SimulatedRouter* router : parts_.routers) {
    if (!router->is_up()) router->Start();
  }
}

bool FaultPlan::Happen(FaultKind kind) {
  const auto counted = [this, kind](bool happened) {
    if (happened) Count(kind);
    return happened;
  };
  switch (kind) {
    case FaultKind::kPrefillCrash:
      return counted(CrashOne(v1::WORKER_ROLE_PREFILL));
    case FaultKind::kDecodeCrash:
      return counted(CrashOne(v1::WORKER_ROLE_DECODE));
    case FaultKind::kUnifiedCrash:
      return counted(CrashOne(v1::WORKER_ROLE_UNIFIED));
    case FaultKind::kHostLoss:
      return counted(LoseHost());
    case FaultKind::kCrashBeforePull:
    case FaultKind::kCrashInPull:
    case FaultKind::kCrashAfterPull:
      pull_crash_ = kind;  // Counted when it happens.
      return false;
    case FaultKind::kDrain:
      return counted(DrainOne(options_.drain_grace));
    case FaultKind::kDrainCut:
      return counted(DrainOne(absl::ZeroDuration()));
    case FaultKind::kStandStill:
      return counted(StopOne());
    case FaultKind::kRouterCrash:
      return counted(CrashRouter());
    case FaultKind::kLinkBreak: {
      const SimulatedWorker* worker = AnyWorker(std::nullopt, true);
      return worker != nullptr && counted(BreakLink({worker->id()}));
    }
    case FaultKind::kCallBreak: {
      const SimulatedWorker* worker = AnyWorker(std::nullopt, true);
      return worker != nullptr &&
             counted(parts_.calls->BreakOneOf(worker->id()));
    }
    case FaultKind::kClientBreak:
      return counted(BreakLink(parts_.clients));
    case FaultKind::kHalfOpen:
      return counted(Block(false));
    case FaultKind::kPartition:
      return counted(Block(true));
    case FaultKind::kKvPartition:
      return counted(CutKv());
    default:
      CHECK(false) << kFaultNames[static_cast<size_t>(kind)]
                   << " has no time of its own";
      return false;
  }
}

bool FaultPlan::CrashOne(v1::WorkerRole role) {
  SimulatedWorker* const worker = AnyWorker(role, true);
  if (worker == nullptr) return false;
  worker->Crash(true);
  RestartLater(worker);
  return true;
}

bool FaultPlan::LoseHost() {
  SimulatedWorker* const worker = AnyWorker(std::nullopt, true);
  if (worker == nullptr) return false;
  worker->Crash(false);
  RestartLater(worker);
  return true;
}

bool FaultPlan::DrainOne(absl::Duration grace) {
  SimulatedWorker* const worker = AnyWorker(std::nullopt, true);
  if (worker == nullptr || worker->is_draining()) return false;
  worker->Drain(grace);
  RestartLater(worker);
  return true;
}

bool FaultPlan::StopOne() {
  SimulatedWorker* const worker = AnyWorker(std::nullopt, true);
  if (worker == nullptr) return false;
  worker->StandStill(Outage());
  return true;
}

bool FaultPlan::CrashRouter() {
  SimulatedRouter* const router = AnyRouter();
  if (router == nullptr || router->CollectCalls() == 0) return false;
  router->Crash();
  loop_.After(Outage(), [router] {
    if (!router->is_up()) router->Start();
  });
  return true;
}

bool FaultPlan::BreakLink(const std::vector<ProcessId>& others) {
  const SimulatedRouter* const router = AnyRouter();
  if (router == nullptr) return false;
  const ProcessId other = others[loop_.dice().Bits() % others.size()];
  return parts_.calls->BreakLink(router->id(), other) > 0;
}

bool FaultPlan::Block(bool both_ways) {
  const SimulatedRouter* const router = AnyRouter();
  const SimulatedWorker* const worker = AnyWorker(std::nullopt, true);
  if (router == nullptr || worker == nullptr) return false;
  std::vector<Link> links = {{router->id(), worker->id()},
                             {worker->id(), router->id()}};
  if (!both_ways) links.erase(links.begin() + loop_.dice().Between(0, 1));
  for (const Link& link : links) {
    parts_.calls->Block(link.first, link.second);
    blocked_.push_back(link);
  }
  loop_.After(Outage(), [this, links] {
    for (const Link& link : links) {
      std::erase(blocked_, link);
      parts_.calls->Heal(link.first, link.second);
    }
  });
  return true;
}

bool FaultPlan::CutKv() {
  SimulatedWorker* const source = AnyWorker(v1::WORKER_ROLE_PREFILL, true);
  SimulatedWorker* const target = AnyWorker(v1::WORKER_ROLE_DECODE, false);
  if (source == nullptr || target == nullptr) return false;
  if (!loop_.dice().OneIn(3)) kv_blocked_.emplace_back(source, target);
  if (!loop_.dice().OneIn(3)) kv_blocked_.emplace_back(target, source);
  loop_.After(Outage(), [this] { kv_blocked_.clear(); });
  return true;
}

LoopbackFate FaultPlan::FateOf(std::string_view from, std::string_view to,
                               std::string_view message) {
  SimulatedWorker* const sender = WorkerAt(from);
  SimulatedWorker* const receiver = WorkerAt(to);
  // One is dead, which the other does not know.
  if (sender == nullptr || receiver == nullptr) return {.copies = 0};
  receiver->Wake();
  OnKvMessage(sender, receiver, message);
  const std::pair<const SimulatedWorker*, const SimulatedWorker*> way(sender,
                                                                      receiver);
  if (std::find(kv_blocked_.begin(), kv_blocked_.end(), way) !=
      kv_blocked_.end()) {
    return {.copies = 0};
  }
  LoopbackFate fate;
  if (stopped_) return fate;
  const auto strikes = [this](uint32_t one_in) {
    return one_in > 0 && loop_.dice().OneIn(one_in);
  };
  // A block is moved once, or not at all.
  if (strikes(options_.kv_loss_one_in)) {
    fate.copies = 0;
    Count(FaultKind::kKvLoss);
  } else if (!message.empty() && strikes(options_.kv_repeat_one_in)) {
    fate.copies = 2;
    Count(FaultKind::kKvRepeat);
  }
  if (strikes(options_.kv_delay_one_in)) {
    fate.delay_polls = loop_.dice().Between(1, 12);
    Count(FaultKind::kKvDelay);
  }
  return fate;
}

void FaultPlan::OnKvMessage(SimulatedWorker* from, SimulatedWorker* to,
                            std::string_view bytes) {
  if (!pull_crash_.has_value() || bytes.empty()) return;
  const auto message = DecodeKvTransferMessage(bytes);
  CHECK(message.has_value());
  switch (*pull_crash_) {
    case FaultKind::kCrashBeforePull:
      if (!std::holds_alternative<KvOpenMessage>(*message)) return;
      return CrashForPull(to, *pull_crash_);
    case FaultKind::kCrashInPull: {
      const auto* readable = std::get_if<KvReadableMessage>(&*message);
      if (readable == nullptr || readable->num_blocks == 0) return;
      return CrashForPull(from, *pull_crash_);
    }
    default:
      if (!std::holds_alternative<KvDoneMessage>(*message)) return;
      return CrashForPull(to, *pull_crash_);
  }
}

// Not within the network's own call.
void FaultPlan::CrashForPull(SimulatedWorker* worker, FaultKind kind) {
  pull_crash_.reset();
  loop_.After(absl::ZeroDuration(), [this, worker, kind] {
    if (!worker->is_up()) return;
    loop_.Note(kFaultNames[static_cast<size_t>(kind)], worker->id().value());
    Count(kind);
    any_happened_ = true;
    worker->Crash(true);
    RestartLater(worker);
  });
}

void FaultPlan::RestartLater(SimulatedWorker* worker) {
  loop_.After(Outage(), [this, worker] { RestartIfDown(worker); });
}

// What drains takes its time.
void FaultPlan::RestartIfDown(SimulatedWorker* worker) {
  if (!worker->is_up()) return worker->Start();
  if (worker->is_draining()) RestartLater(worker);
}

absl::Duration FaultPlan::Outage() {
  return loop_.dice().Between(absl::Milliseconds(1), options_.longest_outage);
}

SimulatedWorker* FaultPlan::AnyWorker(std::optional<v1::WorkerRole> role,
                                      bool busy) {
  std::vector<SimulatedWorker*> fit;
  for (SimulatedWorker* worker : parts_.workers) {
    if (!worker->is_up() || (busy && worker->num_calls() == 0)) continue;
    if (role.has_value() && worker->role() != *role) continue;
    fit.push_back(worker);
  }
  return fit.empty() ? nullptr : fit[loop_.dice().Bits() % fit.size()];
}

SimulatedRouter* FaultPlan::AnyRouter() {
  SimulatedRouter* const router =
      parts_.routers[loop_.dice().Bits() % parts_.routers.size()];
  return router->is_up() ? router : nullptr;
}

SimulatedWorker* FaultPlan::WorkerAt(std::string_view kv_address) const {
  for (SimulatedWorker* worker : parts_.workers) {
    if (worker->kv_address() == kv_address) return worker;
  }
  return nullptr;
}

}  // namespace baton
