#include "comm/ucx_context.h"

#include <ucs/config/global_opts.h>

#include "base/status_macros.h"
#include "comm/ucx_status.h"

namespace baton {
namespace {

// A peer's death is news to us, but an error on stdout to UCX. UCX_LOG_LEVEL
// still opens its mouth.
void QuietUcx() {
  ucs_log_level_t& level = ucs_global_opts.log_component.log_level;
  if (level == UCS_LOG_LEVEL_WARN) level = UCS_LOG_LEVEL_FATAL;
}

}  // namespace

absl::StatusOr<std::unique_ptr<UcxContext>> UcxContext::Create(
    uint64_t features,
    const std::vector<std::pair<std::string, std::string>>& config) {
  QuietUcx();
  ucp_config_t* values = nullptr;
  RETURN_IF_ERROR(
      UcxStatus(ucp_config_read(nullptr, nullptr, &values), "ucp_config_read"));
  const std::unique_ptr<ucp_config_t, decltype(&ucp_config_release)> owned(
      values, &ucp_config_release);
  for (const auto& [name, value] : config) {
    RETURN_IF_ERROR(
        UcxStatus(ucp_config_modify(values, name.c_str(), value.c_str()),
                  "UCX_" + name + "=" + value));
  }
  ucp_params_t params = {};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME;
  params.features = features;
  params.name = "baton";
  ucp_context_h context = nullptr;
  RETURN_IF_ERROR(UcxStatus(ucp_init(&params, values, &context), "ucp_init"));
  return std::unique_ptr<UcxContext>(new UcxContext(context));
}

UcxContext::~UcxContext() { ucp_cleanup(context_); }

absl::StatusOr<std::unique_ptr<UcxWorker>> UcxWorker::Create(
    const UcxContext& context) {
  ucp_worker_params_t params = {};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  // One thread at a time, not one thread for ever.
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  ucp_worker_h worker = nullptr;
  RETURN_IF_ERROR(UcxStatus(ucp_worker_create(context.get(), &params, &worker),
                            "ucp_worker_create"));
  return std::unique_ptr<UcxWorker>(new UcxWorker(worker));
}

UcxWorker::~UcxWorker() { ucp_worker_destroy(worker_); }

absl::StatusOr<std::string> UcxWorker::Address() const {
  ucp_address_t* address = nullptr;
  size_t length = 0;
  RETURN_IF_ERROR(UcxStatus(ucp_worker_get_address(worker_, &address, &length),
                            "ucp_worker_get_address"));
  std::string bytes(reinterpret_cast<const char*>(address), length);
  ucp_worker_release_address(worker_, address);
  return bytes;
}

}  // namespace baton
