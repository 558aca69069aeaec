#include "server/load_feed.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/field_error.h"
#include "server/edge/grpc_status.h"
#include "server/edge/stream_reactor.h"

namespace baton {
namespace {

constexpr double kDefaultMinIntervalSeconds = 0.01;
constexpr double kLeastMinIntervalSeconds = 0.001;
constexpr double kMostMinIntervalSeconds = 1;
// The engine takes what was submitted to it by then, and the load shows it.
constexpr absl::Duration kLinger = absl::Seconds(1);

// What waits for a slow reader is the newest load alone.
struct NewestLoad {
  static bool Merge(v1::GetLoadResponse* last, v1::GetLoadResponse& next) {
    *last = std::move(next);
    return true;
  }
  static size_t Bytes(const v1::GetLoadResponse& message) {
    return message.ByteSizeLong();
  }
};

// What counts as a change: the rest moves with each step.
std::vector<uint64_t> RequestsByRank(const v1::GetLoadResponse& load) {
  std::vector<uint64_t> requests;
  for (const v1::RankLoad& rank : load.ranks()) {
    requests.push_back(rank.running_requests());
    requests.push_back(rank.waiting_requests());
  }
  return requests;
}

absl::StatusOr<LoadPacer> PacerOf(const v1::WatchLoadRequest& request) {
  const double seconds = request.has_min_interval_seconds()
                             ? request.min_interval_seconds()
                             : kDefaultMinIntervalSeconds;
  if (seconds >= kLeastMinIntervalSeconds &&
      seconds <= kMostMinIntervalSeconds) {
    return LoadPacer(absl::Seconds(seconds));
  }
  return FieldError("min_interval_seconds",
                    absl::StrCat("must be ", kLeastMinIntervalSeconds, " .. ",
                                 kMostMinIntervalSeconds));
}

}  // namespace

class LoadFeed::Watcher final
    : public StreamReactor<v1::GetLoadResponse, NewestLoad> {
 public:
  Watcher(grpc::CallbackServerContext* context, LoadFeed* feed, uint64_t id)
      : StreamReactor(context, feed->streams_), feed_(feed), id_(id) {}

 private:
  void OnPeerGone() override { feed_->OnGone(id_); }
  void OnFlow(bool) override {}  // What waits is one message.

  LoadFeed* const feed_;
  const uint64_t id_;
};

LoadFeed::LoadFeed(const Clock* clock, RequestGate* gate, StreamBudget* streams,
                   std::function<v1::GetLoadResponse()> read)
    : clock_(clock),
      gate_(gate),
      streams_(streams),
      read_(std::move(read)),
      thread_([this] { Run(); }) {
  gate_->OnClose(this, [this] {
    absl::MutexLock lock(&mutex_);
    closed_ = true;
    events_.closed = true;
  });
}

LoadFeed::~LoadFeed() {
  gate_->ForgetOnClose(this);
  {
    absl::MutexLock lock(&mutex_);
    events_.stopping = true;
  }
  thread_.join();
}

LoadFeed::Stream* LoadFeed::Watch(grpc::CallbackServerContext* context,
                                  const v1::WatchLoadRequest& request) {
  const uint64_t id = ++num_subscriptions_;
  auto* const watcher = new Watcher(context, this, id);  // Deletes itself.
  absl::StatusOr<LoadPacer> pacer = PacerOf(request);
  absl::Status status = pacer.status();
  if (status.ok()) {
    absl::MutexLock lock(&mutex_);
    status = Admit();
    if (status.ok()) events_.added.push_back({id, watcher, *pacer});
  }
  if (!status.ok()) watcher->End(std::move(status));
  return watcher;
}

absl::Status LoadFeed::Admit() {
  if (closed_) return DrainingError();
  if (num_watchers_ == kMaxLoadWatchers) {
    return absl::ResourceExhaustedError(
        absl::StrCat(kMaxLoadWatchers, " watch the load already"));
  }
  ++num_watchers_;
  return absl::OkStatus();
}

void LoadFeed::OnRequest() {
  ++num_requests_;
  if (!resting_.exchange(false)) return;
  absl::MutexLock lock(&mutex_);
  events_.requested = true;
}

void LoadFeed::OnGone(uint64_t id) {
  absl::MutexLock lock(&mutex_);
  events_.gone.push_back(id);
}

bool LoadFeed::HasEvents() const {
  return !events_.added.empty() || !events_.gone.empty() || events_.requested ||
         events_.closed || events_.stopping;
}

void LoadFeed::Run() {
  absl::Duration timeout = absl::InfiniteDuration();
  while (true) {
    const Events events = Await(timeout);
    Take(events);
    if (events.stopping) return;
    timeout = subscriptions_.empty() ? absl::InfiniteDuration() : Tell();
  }
}

LoadFeed::Events LoadFeed::Await(absl::Duration timeout) {
  absl::MutexLock lock(&mutex_);
  mutex_.AwaitWithTimeout(absl::Condition(this, &LoadFeed::HasEvents), timeout);
  return std::exchange(events_, Events());
}

void LoadFeed::Take(const Events& events) {
  subscriptions_.insert(subscriptions_.end(), events.added.begin(),
                        events.added.end());
  for (const uint64_t gone : events.gone) {
    const auto found = std::find_if(
        subscriptions_.begin(), subscriptions_.end(),
        [gone](const Subscription& one) { return one.id == gone; });
    if (found == subscriptions_.end()) continue;  // Ended before.
    End(found->watcher, absl::CancelledError());
    subscriptions_.erase(found);
  }
  if (!events.closed && !events.stopping) return;
  for (const Subscription& subscription : subscriptions_) {
    End(subscription.watcher, DrainingError());
  }
  subscriptions_.clear();
}

void LoadFeed::End(Watcher* watcher, const absl::Status& status) {
  watcher->End(status);
  absl::MutexLock lock(&mutex_);
  --num_watchers_;
}

absl::Duration LoadFeed::Tell() {
  const uint64_t num_requests = num_requests_.load();
  const v1::GetLoadResponse load = read_();
  const absl::Time now = clock_->Now();
  std::vector<uint64_t> requests = RequestsByRank(load);
  const bool changed = requests != requests_by_rank_;
  requests_by_rank_ = std::move(requests);
  if (changed) ++version_;
  if (changed || num_requests != seen_requests_ ||
      load.running_requests() > 0 || load.waiting_requests() > 0) {
    busy_until_ = now + kLinger;
  }
  seen_requests_ = num_requests;
  for (Subscription& subscription : subscriptions_) {
    if (subscription.pacer.Tell(now, version_)) {
      subscription.watcher->Send(load);
    }
  }
  return TimeToNextLook(now);
}

absl::Duration LoadFeed::TimeToNextLook(absl::Time now) {
  absl::Duration wait = kSignOfLifeInterval;
  absl::Duration shortest = kSignOfLifeInterval;
  for (const Subscription& subscription : subscriptions_) {
    wait = std::min(wait, subscription.pacer.NextTurn(version_) - now);
    shortest = std::min(shortest, subscription.pacer.min_interval());
  }
  bool rests = now >= busy_until_;
  if (rests) {
    resting_.store(true);
    // One that came before that wakes nobody.
    rests = num_requests_.load() == seen_requests_;
  }
  if (!rests) resting_.store(false);
  return rests ? wait : std::min(wait, shortest);
}

}  // namespace baton
