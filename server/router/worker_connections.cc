#include "server/router/worker_connections.h"

#include "base/logging.h"
#include "server/router/worker_change.h"

namespace baton {

WorkerUse::~WorkerUse() {
  if (connections_ != nullptr) connections_->OnUseEnded(worker_);
}

WorkerConnections::WorkerConnections(WorkerProber::Options prober,
                                     WorkerPool* pool)
    : prober_options_(prober), pool_(pool) {
  for (const WorkerPool::Member& member : pool->members()) {
    Connect(member.id, member.where.address);
  }
  thread_ = std::thread([this] { Run(); });
}

WorkerConnections::~WorkerConnections() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
}

void WorkerConnections::SetWorkers(std::vector<WorkerAddress> workers) {
  absl::MutexLock lock(&mutex_);
  wanted_ = std::move(workers);
}

WorkerUse WorkerConnections::Use(WorkerId worker) {
  absl::MutexLock lock(&mutex_);
  Connection& connection = connections_.at(worker);
  ++connection.num_uses;
  return WorkerUse(this, worker, connection.client.get());
}

void WorkerConnections::ProbeSoon(WorkerId worker) {
  absl::MutexLock lock(&mutex_);
  const auto found = connections_.find(worker);
  if (found == connections_.end() || found->second.prober == nullptr) return;
  found->second.prober->ProbeSoon();
}

size_t WorkerConnections::size() const {
  absl::MutexLock lock(&mutex_);
  return connections_.size();
}

void WorkerConnections::OnGone(WorkerId worker) {
  absl::MutexLock lock(&mutex_);
  connections_.at(worker).gone = true;
  MaybeEnd(worker);
}

void WorkerConnections::OnUseEnded(WorkerId worker) {
  absl::MutexLock lock(&mutex_);
  --connections_.at(worker).num_uses;
  MaybeEnd(worker);
}

void WorkerConnections::MaybeEnd(WorkerId worker) {
  const auto found = connections_.find(worker);
  Connection& connection = found->second;
  if (connection.prober != nullptr || connection.num_uses > 0 ||
      !connection.gone) {
    return;
  }
  ended_.push_back(std::move(connection));
  connections_.erase(found);
}

bool WorkerConnections::HasWork() const {
  return stopping_ || wanted_.has_value() || !ended_.empty();
}

void WorkerConnections::Run() {
  while (true) {
    std::optional<std::vector<WorkerAddress>> wanted;
    std::vector<Connection> ended;  // Destroyed here.
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(this, &WorkerConnections::HasWork));
      if (stopping_) return;
      wanted.swap(wanted_);
      ended.swap(ended_);
    }
    if (wanted.has_value()) Change(*wanted);
  }
}

void WorkerConnections::Change(const std::vector<WorkerAddress>& workers) {
  const WorkerChange change = FindWorkerChange(pool_->members(), workers);
  for (const WorkerId worker : change.left) Disconnect(worker);
  for (const WorkerAddress& where : change.joined) {
    LOG(INFO) << "worker " << where.address << " joined";
    Connect(pool_->Join(where), where.address);
  }
  if (change.num_left_out > 0) {
    LOG(WARNING) << change.num_left_out
                 << " workers are left out: " << kMaxWorkers
                 << " are there already";
  }
}

void WorkerConnections::Connect(WorkerId worker, const std::string& address) {
  // Once it is probed requests come.
  absl::MutexLock lock(&mutex_);
  Connection& connection = connections_[worker];
  connection.client = std::make_unique<WorkerClient>(address);
  connection.prober = std::make_unique<WorkerProber>(
      prober_options_, worker, connection.client.get(), pool_);
}

void WorkerConnections::Disconnect(WorkerId worker) {
  pool_->Leave(worker);
  std::unique_ptr<WorkerProber> prober;
  {
    absl::MutexLock lock(&mutex_);
    prober = std::move(connections_.at(worker).prober);
  }
  // Waits for its probe. The client lives: it ends on this thread alone.
  prober.reset();
  absl::MutexLock lock(&mutex_);
  // Unless a use that ended meanwhile has done so.
  if (connections_.contains(worker)) MaybeEnd(worker);
}

}  // namespace baton
