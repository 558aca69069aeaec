#include "comm/ucx_messenger.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/logging.h"
#include "comm/transport.h"

namespace {

bool fail_next_endpoint = false;

}  // namespace

// In front of UCX's: a connection may fail inside the call that opens it, which
// no peer can be made to cause at will.
extern "C" ucs_status_t ucp_ep_create(ucp_worker_h worker,
                                      const ucp_ep_params_t* params,
                                      ucp_ep_h* endpoint) {
  static const auto create =
      reinterpret_cast<decltype(&ucp_ep_create)>(dlsym(RTLD_NEXT, __func__));
  CHECK(create != nullptr);
  const ucs_status_t status = create(worker, params, endpoint);
  if (fail_next_endpoint) {
    fail_next_endpoint = false;
    CHECK_EQ(status, UCS_OK);
    params->err_handler.cb(params->err_handler.arg, *endpoint,
                           UCS_ERR_CONNECTION_RESET);
  }
  return status;
}

namespace baton {
namespace {

TEST(UcxMessengerTest, AConnectionThatFailsAsItIsOpenedLeavesNoPeer) {
  const auto a = UcxMessenger::Create("lo", /*max_peers=*/1).value();
  const auto b = UcxMessenger::Create("lo", /*max_peers=*/1).value();
  std::vector<TransportEvent> at_a, at_b;
  fail_next_endpoint = true;
  const auto failed = a->Connect(b->address());
  EXPECT_FALSE(fail_next_endpoint);
  EXPECT_TRUE(absl::IsUnavailable(failed.status()));
  a->Poll(&at_a);
  EXPECT_TRUE(at_a.empty());

  // Its address is free for the next attempt, which reaches the peer.
  const auto peer = a->Connect(b->address());
  ASSERT_TRUE(peer.ok()) << peer.status().ToString();
  a->SendMessage(*peer, "hello");
  const absl::Time deadline = absl::Now() + absl::Seconds(60);
  while (at_b.empty()) {
    ASSERT_LT(absl::Now(), deadline);
    a->Poll(&at_a);
    b->Poll(&at_b);
  }
  EXPECT_EQ(std::get<MessageReceived>(at_b.front()).message, "hello");
  EXPECT_TRUE(at_a.empty());
}

}  // namespace
}  // namespace baton
