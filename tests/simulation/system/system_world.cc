#include "tests/simulation/system/system_world.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "server/edge/grpc_status.h"
#include "server/edge/stream_budget.h"

namespace baton {
namespace {

// Ids of processes: routers, then workers, then clients.
constexpr uint32_t kFirstWorker = 10;
constexpr uint32_t kFirstClient = 100;

constexpr absl::Duration kStart = absl::Milliseconds(100);
constexpr uint64_t kMaxEventsAfterFaults = 10'000'000;

}  // namespace

SystemWorld::SystemWorld(const SystemOptions& options,
                         const Tokenizer* tokenizer, bool trace)
    : options_(options),
      tokenizer_(tokenizer),
      loop_(options.seed, trace),
      calls_(options.calls, &loop_) {
  MakeWorkers();
  MakeRouters();
  SystemParts parts;
  parts.loop = &loop_;
  parts.calls = &calls_;
  for (const auto& worker : workers_) parts.workers.push_back(worker.get());
  for (const auto& router : routers_) parts.routers.push_back(router.get());
  for (uint32_t i = 0; i < options.num_client_processes; ++i) {
    client_processes_.emplace_back(kFirstClient + i);
  }
  parts.clients = client_processes_;
  faults_ = std::make_unique<FaultPlan>(options.faults, parts);
  kv_network_.set_hook([this](std::string_view from, std::string_view to,
                              std::string_view message) {
    return faults_->FateOf(from, to, message);
  });
}

SystemWorld::~SystemWorld() = default;

void SystemWorld::MakeWorkers() {
  for (size_t i = 0; i < options_.workers.size(); ++i) {
    SimulatedWorker::Options worker = options_.workers[i];
    worker.id = ProcessId(kFirstWorker + static_cast<uint32_t>(i));
    worker.on_outcome = [this, role = worker.role](const absl::Status& status) {
      OnOutcome(role, status);
    };
    worker.on_paused = [this] { faults_->Count(FaultKind::kWorkerPause); };
    worker.on_cut = [this] {
      // What the router makes of that.
      kv_was_lost_ = true;
      faults_->Count(FaultKind::kWorkerCut);
    };
    workers_.push_back(std::make_unique<SimulatedWorker>(
        worker, &loop_, &calls_, &kv_network_));
    workers_.back()->Start();
  }
}

void SystemWorld::MakeRouters() {
  std::vector<SimulatedWorker*> workers;
  for (const auto& worker : workers_) workers.push_back(worker.get());
  for (uint32_t i = 0; i < options_.num_routers; ++i) {
    SimulatedRouter::Options router = options_.router;
    router.id = ProcessId(i);
    router.tokenizer = tokenizer_;
    routers_.push_back(
        std::make_unique<SimulatedRouter>(router, &loop_, &calls_, workers));
    routers_.back()->Start();
  }
}

void SystemWorld::Run(uint64_t events) {
  // Once the routers know their workers.
  loop_.After(kStart, [this] {
    ArriveLater();
    faults_->Start();
  });
  while (loop_.num_noted() < events) Step();
  arrivals_ = false;
  faults_->Stop();
  loop_.Note("calm", 0);
  const absl::Time calm = loop_.now();
  absl::Time last_end = calm;
  for (uint64_t i = 0; !IsQuiet(); ++i) {
    CHECK_LT(i, kMaxEventsAfterFaults) << "events without end";
    CHECK_LE(loop_.now() - calm, options_.patience) << WhatIsLeft();
    if (!live_.empty()) last_end = loop_.now();
    Step();
  }
  result_.longest_recovery = last_end - calm;
  for (const auto& router : routers_) router->StopProbing();
  while (loop_.RunNext()) {
  }
  CheckNothingIsLeft();
}

void SystemWorld::Step() {
  CHECK(loop_.RunNext()) << "nothing is to happen any more";
  if (options_.corrupts_kv && loop_.dice().OneIn(10)) {
    workers_[loop_.dice().Bits() % workers_.size()]->FlipKvBit();
  }
  JudgeEnded();
}

void SystemWorld::ArriveLater() {
  loop_.After(
      loop_.dice().Between(absl::ZeroDuration(), options_.longest_arrival_gap),
      [this] {
        if (!arrivals_) return;
        if (live_.size() < options_.max_live_requests) Arrive();
        ArriveLater();
      });
}

void SystemWorld::Arrive() {
  Dice& dice = loop_.dice();
  SimulatedRouter* const router = routers_[dice.Bits() % routers_.size()].get();
  if (!router->is_up()) return;  // Who would know that asks later.
  live_.push_back(std::make_unique<SimulatedClient>(
      ++num_requests_,
      client_processes_[dice.Bits() % client_processes_.size()],
      RandomRequest(options_.requests, *tokenizer_, &dice)));
  live_.back()->Start(&loop_, &calls_, router);
}

void SystemWorld::JudgeEnded() {
  for (auto& client : live_) {
    if (!client->has_ended()) continue;
    Judge(*client);
    ended_.push_back(std::move(client));
  }
  std::erase(live_, nullptr);
}

void SystemWorld::Judge(const SimulatedClient& client) {
  const absl::Status& status = client.status();
  ++result_.ends[static_cast<size_t>(status.code())];
  result_.tokens += client.num_tokens();
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return;
    case absl::StatusCode::kDeadlineExceeded:
      CHECK_GE(loop_.now(), client.deadline());
      return faults_->Count(FaultKind::kDeadline);
    case absl::StatusCode::kCancelled:
      CHECK(client.has_cancelled()) << status.ToString();
      return faults_->Count(FaultKind::kCancel);
    case absl::StatusCode::kAborted:
      // Where slow readers are cut nobody is always fast enough.
      CHECK(options_.requests.reads_slowly) << status.ToString();
      CHECK(absl::StartsWith(status.message(), kSlowReaderReason))
          << status.ToString();
      return faults_->Count(FaultKind::kSlowReaderCut);
    case absl::StatusCode::kUnavailable:
      // A worker was lost; or KV was, or the worker was full, when nobody else
      // was there to take its place.
      CHECK(faults_->any_happened() || kv_was_lost_ || !options_.has_room)
          << status.ToString();
      return;
    case absl::StatusCode::kResourceExhausted:
      CHECK(!options_.has_room) << status.ToString();
      return faults_->Count(ErrorReason(status) == "QUEUE_FULL"
                                ? FaultKind::kRouterQueueFull
                                : FaultKind::kWorkerQueueFull);
    default:
      CHECK(false) << status.ToString();
  }
}

void SystemWorld::OnOutcome(v1::WorkerRole role, const absl::Status& status) {
  if (!absl::IsAborted(status)) return;
  // Of a transfer, by either end. Which end's word it was only the text tells.
  kv_was_lost_ = true;
  const bool exported = role == v1::WORKER_ROLE_PREFILL;
  if (exported && absl::StrContains(status.message(), "lease ran out")) {
    faults_->Count(FaultKind::kLeaseRunsOut);
  }
  if (!exported && absl::StrContains(status.message(), "ended the lease")) {
    faults_->Count(FaultKind::kKvRefused);
  }
}

bool SystemWorld::IsQuiet() {
  if (!live_.empty()) return false;
  for (const auto& router : routers_) {
    if (router->CollectCalls() > 0) return false;
  }
  return std::all_of(workers_.begin(), workers_.end(), [](const auto& worker) {
    return worker->is_up() && !worker->is_draining() &&
           worker->num_calls() == 0 && worker->is_idle();
  });
}

std::string SystemWorld::WhatIsLeft() {
  std::string text =
      absl::StrCat(live_.size(), " requests, ", calls_.num_live(), " calls");
  for (const auto& router : routers_) {
    absl::StrAppend(&text, ", router ", router->id().value(), ": ",
                    router->CollectCalls(), " calls, ",
                    router->pool().num_in_flight(), " in flight");
  }
  for (const auto& worker : workers_) {
    absl::StrAppend(&text, ", worker ", worker->id().value(), ": ",
                    worker->is_up() ? worker->num_calls() : 0, " calls");
    if (worker->is_draining()) absl::StrAppend(&text, ", draining");
    if (worker->is_up() && !worker->is_idle()) absl::StrAppend(&text, ", busy");
  }
  return text;
}

void SystemWorld::CheckNothingIsLeft() {
  for (const auto& router : routers_) {
    CHECK_EQ(router->pool().num_in_flight(), 0);
    CHECK_EQ(router->admission().num_running(), 0u);
    CHECK_EQ(router->admission().num_waiting(), 0u);
    router->streams()->CheckNothingIsLeft();
  }
  for (const auto& worker : workers_) worker->CheckNothingIsLeft();
  CHECK_EQ(calls_.num_live(), 0u);
}

SystemResult SystemWorld::result() const {
  SystemResult result = result_;
  result.seeds = 1;
  result.events = loop_.num_noted();
  result.fewest_events = result.events;
  result.requests = num_requests_;
  result.faults = faults_->counts();
  for (const auto& worker : workers_) {
    const SimulatedWorker::StepCounts counts = worker->CountSteps();
    result.steps += counts.steps;
    CountOf(FaultKind::kPreemption, &result.faults) += counts.preemptions;
  }
  for (const auto& router : routers_) {
    CountOf(FaultKind::kClientPause, &result.faults) += router->num_pauses();
    result.retry_reasons.insert(router->retry_reasons().begin(),
                                router->retry_reasons().end());
  }
  result.log_hash = loop_.log_hash();
  return result;
}

}  // namespace baton
