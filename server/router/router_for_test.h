// A router on a real port, with a client, in a test's own process.
#ifndef BATON_SERVER_ROUTER_ROUTER_FOR_TEST_H_
#define BATON_SERVER_ROUTER_ROUTER_FOR_TEST_H_

#include <grpcpp/grpcpp.h>
#include <prometheus/registry.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "proto/baton/v1/inference.grpc.pb.h"
#include "proto/baton/v1/worker.pb.h"
#include "server/edge/request_gate.h"
#include "server/router/fake_worker_for_test.h"
#include "server/router/inference_service.h"
#include "server/router/router.h"
#include "server/router/text_executor.h"
#include "server/text/text_model.h"

namespace baton {

// The text side of the demo model.
const TextModel& DemoText();
// A worker that fits it, with a context of 4096.
v1::GetWorkerInfoResponse DemoInfo(v1::WorkerRole role);
// Token i of what fake workers generate: "abc...".
uint32_t LetterToken(uint32_t i);
std::vector<uint32_t> LetterTokens(uint32_t first, uint32_t count);

// Of sample 0; `samples` has the others, 1 and up.
struct GenerateOutcome {
  std::vector<uint32_t> token_ids;
  std::vector<float> logprobs;
  std::string text;
  std::optional<v1::GenerateFinished> finished;
  grpc::Status status;
  std::map<uint32_t, GenerateOutcome> samples;
};

// Reads a Generate call to its end; fails the test at a gap.
GenerateOutcome ReadAll(grpc::ClientReader<v1::GenerateResponse>* reader);

class RouterForTest final {
 public:
  // Timeouts are short and policies least loaded unless `options` says so.
  static Router::Options Options(const std::vector<const FakeWorker*>& workers);

  explicit RouterForTest(Router::Options options);
  ~RouterForTest();

  const std::string& address() const { return address_; }
  v1::InferenceService::Stub& stub() { return *stub_; }
  Router& router() { return *router_; }
  RequestGate& gate() { return gate_; }
  TextExecutor& text_executor() { return service_->text_executor(); }
  GenerateOutcome Generate(const v1::GenerateRequest& request);
  // The value of a series on /metrics: `name{labels}`.
  double Metric(const std::string& series);

 private:
  RequestGate gate_;
  prometheus::Registry registry_;
  std::unique_ptr<Router> router_;
  std::unique_ptr<InferenceService> service_;
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
  std::unique_ptr<v1::InferenceService::Stub> stub_;
};

// Ids 1, 2, 3 and `max_tokens`, greedy.
v1::GenerateRequest IdsRequest(uint32_t max_tokens);

// Scripts of workers that do as they should: tokens are LetterToken(i), of
// sample s LetterToken(s + i).
FakeWorker::PrefillScript GoodPrefill();
FakeWorker::DecodeScript GoodDecode();

}  // namespace baton

#endif  // BATON_SERVER_ROUTER_ROUTER_FOR_TEST_H_
