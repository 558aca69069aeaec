#include "tests/simulation/system/simulated_worker.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "server/convert.h"
#include "server/edge/grpc_status.h"
#include "server/edge/request_gate.h"
#include "server/token_messages.h"
#include "tests/fakes/fake_rank.h"
#include "tests/fakes/simulated_clock.h"
#include "tests/simulation/system/fake_rank_options.h"
#include "tests/simulation/system/token_stream.h"

namespace baton {
namespace {

constexpr absl::Duration kLongestPause = absl::Milliseconds(20);
// Looking at everything costs more than a turn.
constexpr uint64_t kTurnsPerCheck = 8;

template <typename Request>
absl::StatusOr<GenerationRequest> Convert(const Request& request,
                                          absl::Time deadline,
                                          const RequestLimits& limits) {
  ASSIGN_OR_RETURN(GenerationRequest converted,
                   ToGenerationRequest(request, limits));
  converted.deadline = deadline;
  return converted;
}

}  // namespace

// Its clock is its own: the dead live on until what they held is torn down, as
// far as the simulation must.
struct SimulatedWorker::Process {
  explicit Process(std::string address) : kv_address(std::move(address)) {}
  const std::string kv_address;
  SimulatedClock clock;
  std::unique_ptr<FakeRank> rank;
  RequestGate gate;
  TokenStreamParts parts;
  // By call.
  std::map<uint64_t, std::unique_ptr<AnyTokenStream>> streams;
  bool draining = false;
};

SimulatedWorker::SimulatedWorker(const Options& options, EventLoop* loop,
                                 CallNetwork* calls,
                                 LoopbackNetwork* kv_network)
    : options_(options), loop_(loop), calls_(calls), kv_network_(kv_network) {}

SimulatedWorker::~SimulatedWorker() {
  if (is_up()) TearDown(process_.get());
}

void SimulatedWorker::Start() {
  CHECK(!is_up());
  loop_->Note("start", id().value(), ++num_incarnations_);
  auto process = std::make_unique<Process>(
      absl::StrCat("w", id().value(), ".", num_incarnations_));
  process->clock.Advance(loop_->now() - process->clock.Now());
  std::unique_ptr<Transport> transport;
  if (role() != v1::WORKER_ROLE_UNIFIED) {
    transport = kv_network_->CreateEndpoint(
        process->kv_address, {.maps_regions = options_.shape.maps_regions});
  }
  FakeRank::Options rank = ToRankOptions(options_.shape);
  rank.transfer.token_seed = loop_->dice().Bits() | 1;
  process->rank =
      std::make_unique<FakeRank>(rank, &process->clock, std::move(transport));
  process->parts = {
      .engine = &process->rank->engine(),
      .gate = &process->gate,
      .streams = std::make_shared<ProcessStreams>(options_.streams, loop_),
      .on_outcome =
          [this](const GenerationOutcome& outcome) {
            // The dead are heard of no more.
            if (is_up()) options_.on_outcome(outcome.status);
          },
      .on_paused = options_.on_paused,
      .on_cut = options_.on_cut,
      .wake = [this] { Wake(); }};
  // One for all: the order of the gate's own is nobody's.
  process->gate.OnCut(this, [this] { Cut(); });
  process_ = std::move(process);
  stands_until_ = absl::InfinitePast();
  calls_->SetListening(id(), true);
}

void SimulatedWorker::Crash(bool told) {
  loop_->Note("crash", id().value(), told ? 1 : 0);
  End(told);
}

void SimulatedWorker::Drain(absl::Duration grace) {
  loop_->Note("drain", id().value());
  process_->draining = true;
  process_->gate.Close();
  const uint64_t incarnation = num_incarnations_;
  loop_->After(grace, [this, incarnation] {
    if (!is_up() || num_incarnations_ != incarnation) return;
    loop_->Note("cut", id().value(), process_->gate.inside());
    process_->gate.Cut();
  });
  Wake();
}

void SimulatedWorker::StandStill(absl::Duration duration) {
  loop_->Note("stand still", id().value());
  stands_until_ = loop_->now() + duration;
  Wake();
}

void SimulatedWorker::FlipKvBit() {
  if (!is_up()) return;
  KvPool& pool = process_->rank->pool();
  const BlockId block(loop_->dice().Between(0, pool.num_blocks() - 1));
  pool.block(block)[loop_->dice().Bits() % pool.block_bytes()] ^= std::byte{1};
}

bool SimulatedWorker::is_draining() const {
  return is_up() && process_->draining;
}

uint64_t SimulatedWorker::num_calls() const {
  return is_up() ? process_->gate.inside() : 0;
}

bool SimulatedWorker::is_idle() const {
  return process_->rank->engine().idle();
}

void SimulatedWorker::CheckNothingIsLeft() const {
  const LLMEngine& engine = process_->rank->engine();
  CHECK(engine.idle());
  engine.CheckInvariants();
  const EngineLoad load = engine.load();
  CHECK_EQ(load.free_blocks, load.total_blocks);
  CHECK_EQ(load.exporting_requests + load.importing_requests, 0u);
  CHECK_EQ(load.running_requests + load.waiting_requests, 0u);
  CHECK_EQ(num_calls(), 0u);
  process_->parts.streams->CheckNothingIsLeft();
}

std::string_view SimulatedWorker::kv_address() const {
  return is_up() ? std::string_view(process_->kv_address) : "";
}

template <typename Response, typename Request>
void SimulatedWorker::Accept(const Request& request,
                             StreamStart<Response> start) {
  CHECK(is_up());
  SyncClock();
  SimulatedCall* const call = start.call;
  // Whoever hears of the refusal has nobody to answer.
  const auto refuse = [call](const absl::Status& status) {
    call->Serve({.on_write_done = [](bool) {}, .on_cancel = [] {}});
    call->Finish(status);
  };
  if (const absl::Status entered = process_->gate.Enter(); !entered.ok()) {
    return refuse(entered);
  }
  absl::StatusOr<GenerationRequest> converted =
      Convert(request, call->deadline(), process_->rank->engine().limits());
  if (!converted.ok()) {
    process_->gate.Leave();
    return refuse(converted.status());
  }
  process_->streams.emplace(
      call->number(),
      std::make_unique<TokenStream<Response>>(
          std::move(start), &process_->parts, *std::move(converted)));
  if (process_->gate.is_cut()) Cut();
  Wake();
}

void SimulatedWorker::Abort(const v1::AbortRequest& request) {
  const absl::StatusOr<RequestId> request_id = ToRequestId(request);
  CHECK_OK(request_id.status());
  process_->rank->engine().Abort(*request_id, request.sample_index());
  Wake();
}

absl::StatusOr<SimulatedWorker::ProbeAnswer> SimulatedWorker::Probe() const {
  if (is_draining()) return absl::UnavailableError("NOT_SERVING");
  LLMEngine& engine = process_->rank->engine();
  ProbeAnswer answer;
  v1::GetWorkerInfoResponse& info = answer.info;
  info.set_role(role());
  info.set_num_local_ranks(1);
  info.set_ep_size(1);
  info.set_max_context_tokens(engine.limits().max_context_tokens);
  info.set_vocab_size(engine.limits().vocab_size);
  info.set_fingerprint(process_->rank->model().info().fingerprint);
  info.set_incarnation(num_incarnations_);
  if (role() != v1::WORKER_ROLE_UNIFIED) info.add_kv_transports("loopback");
  answer.load = LoadOf({&engine});
  return answer;
}

void SimulatedWorker::Wake() {
  pause_ = options_.unit;
  ScheduleTurn(loop_->dice().Between(absl::ZeroDuration(), options_.unit));
}

void SimulatedWorker::ScheduleTurn(absl::Duration delay) {
  const absl::Time due = std::max(loop_->now() + delay, stands_until_);
  if (turn_is_due_) {
    if (next_turn_.due <= due) return;
    loop_->Cancel(next_turn_);
  }
  turn_is_due_ = true;
  next_turn_ = loop_->After(due - loop_->now(), [this] {
    turn_is_due_ = false;
    Turn();
  });
}

void SimulatedWorker::Turn() {
  if (!is_up()) return;
  if (loop_->now() < stands_until_) return ScheduleTurn(absl::ZeroDuration());
  SyncClock();
  const bool busy = AdvanceEngine();
  CollectStreams();
  const bool idle = process_->rank->engine().idle();
  if (busy) {
    loop_->Note("turn", id().value(), num_turns_);
    pause_ = options_.unit;
  } else if (idle && process_->draining && process_->gate.inside() == 0) {
    loop_->Note("exit", id().value());
    return End(true);
  } else if (idle) {
    return;  // Until something comes.
  } else {
    pause_ = std::min(2 * pause_, kLongestPause);
  }
  ScheduleTurn(loop_->dice().Between(pause_ / 4, pause_));
}

bool SimulatedWorker::AdvanceEngine() {
  FakeRank& rank = *process_->rank;
  rank.stream().set_task_time(
      loop_->dice().Between(absl::ZeroDuration(), options_.unit));
  bool busy = rank.engine().Advance();
  if (++num_turns_ % kTurnsPerCheck == 0) rank.engine().CheckInvariants();
  busy |= rank.stream().Poll();
  if (rank.agent() != nullptr) busy |= rank.agent()->Poll();
  return busy;
}

void SimulatedWorker::SyncClock() {
  process_->clock.Advance(loop_->now() - process_->clock.Now());
}

void SimulatedWorker::CollectStreams() {
  RequestGate& gate = process_->gate;
  std::erase_if(process_->streams, [&gate](const auto& stream) {
    if (!stream.second->is_over()) return false;
    gate.Leave();
    return true;
  });
}

void SimulatedWorker::Cut() {
  for (const auto& [number, stream] : process_->streams) stream->Abort();
  Wake();
}

void SimulatedWorker::End(bool told) {
  ended_steps_ = CountSteps();
  calls_->OnDied(id(), told);
  std::unique_ptr<Process> dead = std::move(process_);
  TearDown(dead.get());
  if (role() == v1::WORKER_ROLE_UNIFIED) return;
  if (!told) {
    kv_network_->Kill(dead->kv_address, false);
    return;
  }
  // Destroyed, its endpoint tells its peers.
  unnoticed_.push_back(std::move(dead));
  loop_->After(calls_->Delay(), [this] {
    const auto noticed = std::move(unnoticed_.front());
    unnoticed_.erase(unnoticed_.begin());
    loop_->Note("kv peers told", id().value());
  });
}

// An engine must be idle at its end; nobody hears it any more.
void SimulatedWorker::TearDown(Process* process) {
  constexpr int kMaxTurns = 100'000;
  FakeRank& rank = *process->rank;
  process->parts.streams->Stop();
  for (const auto& [number, stream] : process->streams) stream->Abort();
  for (int turn = 0; !rank.engine().idle(); ++turn) {
    CHECK_LT(turn, kMaxTurns) << "a dead engine that never rests";
    rank.engine().Advance();
    rank.stream().Poll();
    if (rank.agent() != nullptr) rank.agent()->Poll();
    process->clock.Advance(options_.unit);
  }
}

SimulatedWorker::StepCounts SimulatedWorker::CountSteps() const {
  StepCounts counts = ended_steps_;
  if (!is_up()) return counts;
  const StepCounts present = CountSteps(*process_);
  counts.steps += present.steps;
  counts.preemptions += present.preemptions;
  return counts;
}

SimulatedWorker::StepCounts SimulatedWorker::CountSteps(
    const Process& process) {
  StepCounts counts;
  for (const StepStats& step : process.rank->steps()) {
    ++counts.steps;
    counts.preemptions += step.preemptions;
  }
  return counts;
}

template void SimulatedWorker::Accept<v1::PrefillResponse>(
    const v1::PrefillRequest&, StreamStart<v1::PrefillResponse>);
template void SimulatedWorker::Accept<v1::DecodeResponse>(
    const v1::DecodeRequest&, StreamStart<v1::DecodeResponse>);

}  // namespace baton
