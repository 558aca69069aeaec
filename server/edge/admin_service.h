// baton.v1.AdminService, of every process.
#ifndef BATON_SERVER_EDGE_ADMIN_SERVICE_H_
#define BATON_SERVER_EDGE_ADMIN_SERVICE_H_

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "proto/baton/v1/admin.grpc.pb.h"

namespace baton {

struct AdminOptions {
  std::string token_file;  // Empty: only loopback peers may.
  // Begins a drain, or shortens its grace (absent: the process' own); calls
  // `begun`, perhaps later and on another thread, with the requests that run.
  using Begun = std::function<void(uint64_t running_requests)>;
  std::function<void(std::optional<absl::Duration> grace, Begun begun)> drain;
  // Who calls. Tests play others.
  std::function<std::string(const grpc::CallbackServerContext&)> peer_of =
      [](const grpc::CallbackServerContext& context) { return context.peer(); };
};

// Thread-safe; called on gRPC's threads.
class AdminService final : public v1::AdminService::CallbackService {
 public:
  explicit AdminService(AdminOptions options);

  grpc::ServerUnaryReactor* Drain(grpc::CallbackServerContext* context,
                                  const v1::DrainRequest* request,
                                  v1::DrainResponse* response) override;

 private:
  absl::Status CheckCaller(const grpc::CallbackServerContext& context) const;
  absl::Status CheckDrain(const v1::DrainRequest& request) const;

  const AdminOptions options_;
  const uint64_t process_;
};

}  // namespace baton

#endif  // BATON_SERVER_EDGE_ADMIN_SERVICE_H_
