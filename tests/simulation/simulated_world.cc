#include "tests/simulation/simulated_world.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <string>
#include <utility>

#include "base/logging.h"
#include "engine/cache_spec.h"
#include "engine/llm_engine.h"

namespace baton {

// A request that was submitted, and its end not yet judged.
struct SimulatedWorld::Live {
  uint64_t index = 0;
  const SimulatedRequest* simulated = nullptr;
  GenerationRequest request;
  size_t rank = 0;  // Where it is generated.
  bool split = false;
  // Of several samples of a split request the first alone is prefilled. It has
  // their number, and each other one 0.
  uint32_t num_samples = 1;
  bool decode_submitted = false;
  bool decode_refused = false;
  bool aborted = false;
  // Since it last got a token.
  bool preempted_by_hand = false;
  uint64_t progress_step = 0;
  size_t tokens_seen = 0;
  RecordingTokenSink prefill;  // Of a split one.
  RecordingTokenSink sink;

  bool prefills() const { return split && num_samples > 0; }
};

SimulatedWorld::SimulatedWorld(const WorldOptions& options, uint32_t depth,
                               RequestSource* requests)
    : options_(options), requests_(requests), random_(options.seed + depth) {
  for (size_t i = 0; i < options.ranks.size(); ++i) {
    FakeRank::Options rank = options.ranks[i];
    rank.engine.pipeline_depth = depth;
    std::unique_ptr<Transport> transport;
    if (options.ranks.size() > 1) {
      transport = network_.CreateEndpoint(
          std::to_string(i), {.maps_regions = options.seed % 2 == 0});
    }
    ranks_.push_back(
        std::make_unique<FakeRank>(rank, &clock_, std::move(transport)));
  }
  network_.set_hook([this](auto, auto, auto) {
    const bool strikes = options_.loses_messages && OneIn(50);
    return LoopbackFate{
        .copies = strikes ? static_cast<uint32_t>(random_() % 3) : 1,
        .delay_polls = static_cast<uint32_t>(random_() % 4)};
  });
}

SimulatedWorld::~SimulatedWorld() = default;

void SimulatedWorld::Run(uint32_t steps) {
  constexpr uint64_t kMaxActsWithoutStep = 1'000'000;
  uint64_t acts = 0;
  for (uint64_t committed = 0; committed < steps;) {
    Act();
    const uint64_t now = NumSteps();
    acts = now == committed ? acts + 1 : 0;
    committed = now;
    CHECK_LT(acts, kMaxActsWithoutStep) << "the engines stand still";
  }
  Drain();
  CheckTotals();
}

void SimulatedWorld::Act() {
  const WorldOptions& o = options_;
  uint64_t pick = random_() % (o.turn_weight + o.poll_weight + o.tick_weight +
                               o.arrival_weight + o.mischief_weight);
  const size_t rank = random_() % ranks_.size();
  if (pick < o.turn_weight) return Turn(rank);
  pick -= o.turn_weight;
  if (pick < o.poll_weight) return Poll(rank);
  pick -= o.poll_weight;
  if (pick < o.tick_weight) return Tick();
  pick -= o.tick_weight;
  if (pick < o.arrival_weight) return Arrive();
  if (OneIn(16)) DoMischief();
}

void SimulatedWorld::Turn(size_t rank) {
  FakeRank& turned = *ranks_[rank];
  turned.stream().set_task_time(options_.unit *
                                static_cast<double>(random_() % 64) / 64);
  const absl::Time turn_start = clock_.Now();
  if (!turned.engine().Advance()) return;
  turned.engine().CheckInvariants();
  for (const auto& live : live_) Observe(live.get(), rank, turn_start);
  CheckProgress(rank);
  std::erase_if(live_, [this](const std::unique_ptr<Live>& live) {
    if (!HasEnded(*live)) return false;
    Judge(*live);
    return true;
  });
}

void SimulatedWorld::Poll(size_t rank) {
  ranks_[rank]->stream().Poll();
  if (ranks_.size() > 1) ranks_[random_() % ranks_.size()]->agent()->Poll();
}

void SimulatedWorld::Tick() {
  clock_.Advance(options_.unit * static_cast<double>(1 + random_() % 64) / 64);
}

void SimulatedWorld::Arrive() {
  if (live_.size() >= options_.max_live) return;
  const size_t rank = random_() % ranks_.size();
  const bool split = ranks_.size() > 1 && !OneIn(4);
  std::vector<std::unique_ptr<Live>> samples;
  std::vector<TokenSink*> sinks;
  const uint32_t num_samples = requests_->Get(next_request_).num_samples;
  for (uint32_t i = 0; i < num_samples; ++i) {
    samples.push_back(NewLive(next_request_ + i));
    Live& live = *samples.back();
    live.request.deadline = samples.front()->request.deadline;
    live.split = split;
    live.num_samples = i == 0 ? num_samples : 0;
    live.rank = split ? 1 : rank;
    live.progress_step = StepsOf(live.rank);
    sinks.push_back(split ? &live.prefill : &live.sink);
  }
  if (split) sinks.resize(1);
  GenerationRequest request = samples.front()->request;
  request.num_samples = static_cast<uint32_t>(sinks.size());
  if (split) request.mode = RequestMode::kPrefill;
  const size_t door = split ? 0 : rank;
  const absl::Status status =
      ranks_[door]->engine().Submit(std::move(request), sinks);
  if (status.ok()) {
    next_request_ += num_samples;
    result_.requests += num_samples;
    std::move(samples.begin(), samples.end(), std::back_inserter(live_));
    return;
  }
  // It comes again.
  CHECK(absl::IsResourceExhausted(status)) << status.ToString();
  CHECK_GT(live_.size() + twins_.size() + sinks.size(),
           options_.ranks[door].engine.max_waiting_requests);
  ++result_.refused;
}

std::unique_ptr<SimulatedWorld::Live> SimulatedWorld::NewLive(uint64_t index) {
  auto live = std::make_unique<Live>();
  live->index = index;
  live->simulated = &requests_->Get(index);
  live->request = live->simulated->request;
  if (live->simulated->deadline_units.has_value()) {
    live->request.deadline =
        clock_.Now() + *live->simulated->deadline_units * options_.unit;
  }
  return live;
}

void SimulatedWorld::DoMischief() {
  if (live_.empty()) return;
  switch (random_() % (options_.corrupts_kv ? 5 : 4)) {
    case 0:
      return AbortSome();
    case 1:
    case 2:
      return PreemptOne();
    case 3:
      return SubmitTwin();
    default:
      return CorruptKv();
  }
}

SimulatedWorld::Live* SimulatedWorld::AnyLive() {
  return live_[random_() % live_.size()].get();
}

void SimulatedWorld::AbortSome() {
  const RequestId id = AnyLive()->request.id;
  const uint32_t sample = AnyLive()->request.sample_index;
  std::optional<uint32_t> victim;
  if (OneIn(2)) victim = sample;
  for (const auto& live : live_) {
    if (live->request.id != id) continue;
    if (victim.has_value() && live->request.sample_index != *victim) continue;
    live->aborted = true;
  }
  // A split one is aborted at one side or at both.
  const uint64_t sides = ranks_.size() == 1 ? 1 : 1 + random_() % 3;
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    const bool chosen = (sides >> rank & 1) != 0;
    const bool whole = std::any_of(
        live_.begin(), live_.end(), [&](const std::unique_ptr<Live>& live) {
          return live->aborted && live->request.id == id && !live->split;
        });
    if (chosen || whole) ranks_[rank]->engine().Abort(id, victim);
  }
}

void SimulatedWorld::PreemptOne() {
  Live* live = AnyLive();
  if (!ranks_[live->rank]->engine().Preempt(live->request.id,
                                            live->request.sample_index)) {
    return;
  }
  ++result_.preempted_by_hand;
  live->preempted_by_hand = true;
  live->progress_step = StepsOf(live->rank);
}

// A live request once more, which the engine must refuse.
void SimulatedWorld::SubmitTwin() {
  const Live* live = AnyLive();
  if (live->split || live->aborted) return;
  GenerationRequest twin = live->request;
  auto sink = std::make_unique<RecordingTokenSink>();
  const absl::Status status =
      ranks_[live->rank]->engine().Submit(std::move(twin), sink.get());
  if (status.ok()) twins_.push_back(std::move(sink));
}

void SimulatedWorld::CorruptKv() {
  KvPool& pool = ranks_[random_() % ranks_.size()]->pool();
  const BlockId block(random_() % pool.num_blocks());
  pool.block(block)[random_() % pool.block_bytes()] ^= std::byte{1};
}

void SimulatedWorld::Drain() {
  constexpr int kMaxRounds = 1'000'000;
  const auto idle = [](const std::unique_ptr<FakeRank>& rank) {
    return rank->engine().idle();
  };
  for (int round = 0;
       !std::all_of(ranks_.begin(), ranks_.end(), idle) || !live_.empty();
       ++round) {
    CHECK_LT(round, kMaxRounds) << "requests that never end";
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      Turn(rank);
      Poll(rank);
    }
    Tick();
  }
}

void SimulatedWorld::Observe(Live* live, size_t rank, absl::Time turn_start) {
  if (live->prefills() && rank == 0) StartDecoding(live);
  if (live->rank != rank) return;
  if (live->sink.tokens.size() > live->tokens_seen) {
    live->tokens_seen = live->sink.tokens.size();
    live->progress_step = StepsOf(rank);
    live->preempted_by_hand = false;
  }
  if (live->split) return;
  // Nothing holds its blocks: it is gone at the next turn.
  if (live->aborted || live->request.deadline <= turn_start) {
    CHECK(live->sink.finished()) << "request " << live->request.id;
  }
}

// What a router does with a split request.
void SimulatedWorld::StartDecoding(Live* live) {
  if (!live->decode_submitted && live->prefill.handle.has_value()) {
    GenerationRequest request = live->request;
    request.mode = RequestMode::kDecode;
    request.kv_handle = live->prefill.handle;
    request.num_samples = live->num_samples;
    const std::vector<Live*> samples = SamplesOf(*live);
    std::vector<TokenSink*> sinks;
    for (Live* sample : samples) sinks.push_back(&sample->sink);
    const absl::Status status =
        ranks_[1]->engine().Submit(std::move(request), sinks);
    for (Live* sample : samples) {
      sample->decode_submitted = true;
      sample->decode_refused = !status.ok();
    }
    if (!status.ok()) {
      CHECK(absl::IsResourceExhausted(status)) << status.ToString();
      ++result_.refused;
    }
  }
  if (!live->decode_submitted && live->prefill.finished()) {
    for (Live* sample : SamplesOf(*live)) sample->decode_refused = true;
  }
  // Nobody wants the lease any more.
  if (live->decode_refused || live->sink.finished()) {
    ranks_[0]->engine().Abort(live->request.id, live->request.sample_index);
  }
}

// None of them ends before the first one's prefill.
std::vector<SimulatedWorld::Live*> SimulatedWorld::SamplesOf(
    const Live& first) const {
  std::vector<Live*> samples;
  for (const auto& live : live_) {
    const uint64_t i = live->index - first.index;
    if (i < first.num_samples) samples.push_back(live.get());
  }
  CHECK_EQ(samples.size(), first.num_samples);
  return samples;
}

void SimulatedWorld::CheckProgress(size_t rank) {
  if (ranks_.size() > 1) return;  // A transfer may hold what it needs.
  const auto first = std::find_if(
      live_.begin(), live_.end(),
      [](const std::unique_ptr<Live>& live) { return !live->sink.finished(); });
  Oldest& oldest = oldest_[rank];
  if (first == live_.end()) {
    oldest = {};
    return;
  }
  const Live& live = **first;
  if (oldest.live != &live) oldest = {&live, StepsOf(rank)};
  const uint64_t waited =
      StepsOf(rank) - std::max(oldest.since_step, live.progress_step);
  result_.longest_wait = std::max(result_.longest_wait, waited);

  // Every second kind of step is its own. It may wait once for steps in flight,
  // and by hand behind the younger ones, until these have ended.
  const EngineOptions& engine = options_.ranks[rank].engine;
  const uint32_t context = options_.requests.model.max_context_tokens;
  uint64_t bound = context / engine.max_chunk_tokens + 16;
  if (live.preempted_by_hand) bound += 2 * context;
  CHECK_LE(waited, bound * (1 + engine.decode_steps_per_prefill))
      << "request " << live.request.id << " starves";
}

bool SimulatedWorld::HasEnded(const Live& live) const {
  if (!live.split) return live.sink.finished();
  if (live.prefills() && !live.prefill.finished()) return false;
  return live.decode_refused || live.sink.finished();
}

void SimulatedWorld::Judge(const Live& live) {
  const ExpectedTokens& expected = live.simulated->expected;
  for (const RecordingTokenSink* sink : {&live.prefill, &live.sink}) {
    CHECK_LE(sink->tokens.size(), expected.tokens.size());
    CHECK(std::equal(sink->tokens.begin(), sink->tokens.end(),
                     expected.tokens.begin()))
        << "wrong tokens for request " << live.request.id;
    CHECK(std::equal(sink->logprobs.begin(), sink->logprobs.end(),
                     expected.logprobs.begin()))
        << "wrong log-probabilities for request " << live.request.id;
    tokens_told_ += sink->tokens.size();
    if (sink->finished()) JudgeEnd(live, *sink->outcome);
  }
  CHECK_LE(live.prefill.tokens.size(), 1u);
  if (live.prefills() && live.sink.finished() && !live.sink.tokens.empty()) {
    ++tokens_imported_;
    ++result_.imported;
  }
  SimulatedAnswer& answer = answers_[live.index];
  answer.complete = live.sink.finished() && live.sink.outcome->status.ok();
  answer.tokens = live.sink.tokens;
  answer.logprobs = live.sink.logprobs;
}

void SimulatedWorld::JudgeEnd(const Live& live,
                              const GenerationOutcome& outcome) {
  const ExpectedTokens& expected = live.simulated->expected;
  const bool is_prefill = &outcome == &*live.prefill.outcome;
  const std::vector<uint32_t>& tokens =
      is_prefill ? live.prefill.tokens : live.sink.tokens;
  const auto resumed = static_cast<uint32_t>(
      live.request.token_ids.size() - live.request.original_prompt_tokens);
  CHECK_EQ(outcome.prompt_tokens, live.request.original_prompt_tokens);
  CHECK_EQ(outcome.output_tokens, resumed + tokens.size());
  CHECK_LT(outcome.cached_tokens, live.request.token_ids.size());
  uint64_t& shared =
      live.split ? result_.shared_imports : result_.shared_prompts;
  (live.num_samples == 0 ? shared : result_.found_prefixes) +=
      outcome.cached_tokens > 0;
  CHECK_LT(outcome.decode_cached_tokens, live.request.token_ids.size());
  result_.found_imports += outcome.decode_cached_tokens > 0;
  if (live.request.bypass_prefix_cache) {
    CHECK(live.num_samples == 0 || outcome.cached_tokens == 0);
    CHECK_EQ(outcome.decode_cached_tokens, 0u);
  }
  switch (outcome.status.code()) {
    case absl::StatusCode::kOk: {
      if (is_prefill) {
        CHECK_EQ(tokens.size(), 1u);
        return;
      }
      CHECK(expected.sampleable);
      CHECK_EQ(tokens.size(), expected.tokens.size());
      const auto& stops = live.request.stop_token_ids;
      const bool stops_it =
          std::find(stops.begin(), stops.end(), tokens.back()) != stops.end();
      CHECK((outcome.reason == FinishReason::kStopToken) == stops_it);
      ++(stops_it ? result_.stopped : result_.ended_by_length);
      return;
    }
    case absl::StatusCode::kInternal:
      CHECK(!expected.sampleable);
      CHECK_EQ(tokens.size(), expected.tokens.size());
      ++result_.unsampleable;
      return;
    case absl::StatusCode::kDeadlineExceeded:
      CHECK_LE(live.request.deadline, clock_.Now());
      ++result_.late;
      return;
    case absl::StatusCode::kCancelled:
      CHECK(live.aborted || live.split);
      ++result_.cancelled;
      return;
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kUnavailable:
      CHECK(live.prefills()) << outcome.status.ToString();
      ++result_.transfers_failed;
      return;
    default:
      CHECK(false) << outcome.status.ToString();
  }
}

void SimulatedWorld::CheckTotals() {
  for (const auto& twin : twins_) {
    CHECK(twin->code() == absl::StatusCode::kAlreadyExists);
    CHECK(twin->tokens.empty());
    ++result_.twins;
  }
  uint64_t tokens = 0;
  for (const auto& rank : ranks_) {
    const EngineLoad load = rank->engine().load();
    CHECK_EQ(load.free_blocks, load.total_blocks);
    CHECK_LE(load.prefix_cache.hit_tokens, load.prefix_cache.queried_tokens);
    result_.evicted_blocks += load.prefix_cache.evicted_blocks;
    uint64_t rows = 0;
    for (const StepStats& step : rank->steps()) {
      ++result_.steps;
      rows += step.rows;
      tokens += step.tokens;
      CHECK_LE(step.wasted_rows, step.rows);
      result_.wasted_rows += step.wasted_rows;
      result_.preempted_by_scheduler += step.preemptions;
      for (uint32_t i = 0; i < kMaxDraftTokens; ++i) {
        CHECK_LE(step.drafts_accepted[i], step.drafts_verified[i]);
        result_.drafts_verified += step.drafts_verified[i];
        result_.drafts_accepted += step.drafts_accepted[i];
      }
    }
    CHECK_EQ(rows, rank->model().num_rows());
    result_.rows += rows;
  }
  // What the steps count is what clients were told.
  CHECK_EQ(tokens, tokens_told_ - tokens_imported_);
  result_.tokens = tokens_told_;
}

uint64_t SimulatedWorld::NumSteps() const {
  uint64_t steps = 0;
  for (size_t i = 0; i < ranks_.size(); ++i) steps += StepsOf(i);
  return steps;
}

}  // namespace baton
