// Owners of UCX's context and worker.
#ifndef BATON_COMM_UCX_CONTEXT_H_
#define BATON_COMM_UCX_CONTEXT_H_

#include <ucp/api/ucp.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace baton {

// Thread-compatible.
class UcxContext {
 public:
  // `features`: of UCP_FEATURE_*. `config`: names (without UCX_) and values
  // that replace the environment's.
  static absl::StatusOr<std::unique_ptr<UcxContext>> Create(
      uint64_t features,
      const std::vector<std::pair<std::string, std::string>>& config);
  ~UcxContext();
  UcxContext(const UcxContext&) = delete;
  UcxContext& operator=(const UcxContext&) = delete;

  ucp_context_h get() const { return context_; }

 private:
  explicit UcxContext(ucp_context_h context) : context_(context) {}
  const ucp_context_h context_;
};

// Owned by one thread at a time. Destroying it destroys its endpoints, without
// a word to their peers.
class UcxWorker {
 public:
  // Borrows the context.
  static absl::StatusOr<std::unique_ptr<UcxWorker>> Create(
      const UcxContext& context);
  ~UcxWorker();
  UcxWorker(const UcxWorker&) = delete;
  UcxWorker& operator=(const UcxWorker&) = delete;

  ucp_worker_h get() const { return worker_; }
  absl::StatusOr<std::string> Address() const;

 private:
  explicit UcxWorker(ucp_worker_h worker) : worker_(worker) {}
  const ucp_worker_h worker_;
};

}  // namespace baton

#endif  // BATON_COMM_UCX_CONTEXT_H_
