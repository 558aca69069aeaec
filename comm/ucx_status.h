// UCX's status codes as ours, in one place.
#ifndef BATON_COMM_UCX_STATUS_H_
#define BATON_COMM_UCX_STATUS_H_

#include <ucs/type/status.h>

#include <string_view>

#include "absl/status/status.h"

namespace baton {

// `call`: what returned it, for the text.
absl::Status UcxStatus(ucs_status_t status, std::string_view call);

}  // namespace baton

#endif  // BATON_COMM_UCX_STATUS_H_
