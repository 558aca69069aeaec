// A failed call in words that say what to do.
#ifndef BATON_SERVER_CLI_RPC_ERROR_H_
#define BATON_SERVER_CLI_RPC_ERROR_H_

#include <grpcpp/support/status.h>

#include <string>

namespace baton {

// "INVALID_ARGUMENT: sampling.top_p: must be in (0, 1] (INVALID_FIELD); correct
// --top_p and try again". Reads ErrorInfo and RetryInfo from the
// status' details. REQUIRES: !status.ok().
std::string ExplainRpcError(const grpc::Status& status,
                            const std::string& endpoint);

}  // namespace baton

#endif  // BATON_SERVER_CLI_RPC_ERROR_H_
