#include "server/cli/worker_poll.h"

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <future>

#include "proto/baton/v1/health.grpc.pb.h"
#include "proto/baton/v1/worker.grpc.pb.h"
#include "server/edge/grpc_status.h"

namespace baton {
namespace {

using grpc::health::v1::HealthCheckResponse;

// A worker that is back is seen at the next refresh or the one behind.
constexpr int kMaxReconnectMilliseconds = 500;

}  // namespace

struct WorkerPoll::Worker {
  std::unique_ptr<v1::WorkerService::Stub> worker;
  std::unique_ptr<grpc::health::v1::Health::Stub> health;
};

WorkerPoll::WorkerPoll(const std::vector<std::string>& endpoints,
                       const Clock* clock)
    : clock_(clock) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS,
                   kMaxReconnectMilliseconds);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS,
                   kMaxReconnectMilliseconds);
  for (const std::string& endpoint : endpoints) {
    const auto channel = grpc::CreateCustomChannel(
        endpoint, grpc::InsecureChannelCredentials(), arguments);
    workers_.push_back(std::make_unique<Worker>(
        Worker{v1::WorkerService::NewStub(channel),
               grpc::health::v1::Health::NewStub(channel)}));
  }
}

WorkerPoll::~WorkerPoll() = default;

std::vector<WorkerSample> WorkerPoll::Ask(absl::Duration timeout) {
  std::vector<std::future<WorkerSample>> answers;
  for (const auto& worker : workers_) {
    answers.push_back(std::async(std::launch::async, [this, &worker, timeout] {
      return AskOne(worker.get(), timeout);
    }));
  }
  std::vector<WorkerSample> samples;
  for (auto& answer : answers) samples.push_back(answer.get());
  return samples;
}

WorkerSample WorkerPoll::AskOne(Worker* worker, absl::Duration timeout) const {
  const auto deadline =
      std::chrono::system_clock::now() + absl::ToChronoNanoseconds(timeout);
  const auto ask = [deadline](auto* stub, auto call, const auto& request,
                              auto* response) {
    grpc::ClientContext context;
    context.set_deadline(deadline);
    return (stub->*call)(&context, request, response);
  };
  WorkerSample sample;
  HealthCheckResponse health;
  grpc::Status status =
      ask(worker->health.get(), &grpc::health::v1::Health::Stub::Check,
          grpc::health::v1::HealthCheckRequest(), &health);
  if (status.ok()) {
    status = ask(worker->worker.get(), &v1::WorkerService::Stub::GetWorkerInfo,
                 v1::GetWorkerInfoRequest(), &sample.info);
  }
  if (status.ok()) {
    status = ask(worker->worker.get(), &v1::WorkerService::Stub::GetLoad,
                 v1::GetLoadRequest(), &sample.load);
  }
  sample.time = clock_->Now();
  sample.status = FromGrpcStatus(status);
  sample.is_serving = health.status() == HealthCheckResponse::SERVING;
  return sample;
}

}  // namespace baton
