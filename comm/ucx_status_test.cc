#include "comm/ucx_status.h"

#include <gtest/gtest.h>

namespace baton {
namespace {

TEST(UcxStatusTest, ADeadPeerIsUnavailableHoweverUcxCallsIt) {
  for (ucs_status_t status :
       {UCS_ERR_ENDPOINT_TIMEOUT, UCS_ERR_CONNECTION_RESET,
        UCS_ERR_NOT_CONNECTED, UCS_ERR_UNREACHABLE, UCS_ERR_REJECTED}) {
    EXPECT_TRUE(absl::IsUnavailable(UcxStatus(status, "call"))) << status;
  }
}

TEST(UcxStatusTest, TheTextNamesTheCallAndTheReason) {
  EXPECT_TRUE(UcxStatus(UCS_OK, "call").ok());
  EXPECT_EQ(UcxStatus(UCS_ERR_NO_MEMORY, "ucp_mem_map").ToString(),
            "RESOURCE_EXHAUSTED: ucp_mem_map: Out of memory");
  EXPECT_TRUE(absl::IsInternal(UcxStatus(UCS_ERR_LAST, "call")));
}

}  // namespace
}  // namespace baton
