// The client's side of one Generate call.
#ifndef BATON_SERVER_ROUTER_GENERATE_REACTOR_H_
#define BATON_SERVER_ROUTER_GENERATE_REACTOR_H_

#include <grpcpp/grpcpp.h>

#include <cstddef>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "proto/baton/v1/inference.pb.h"
#include "server/edge/stream_reactor.h"

namespace baton {

// Chunks that wait for a slow reader become one chunk.
struct GenerateResponseTraits {
  static bool Merge(v1::GenerateResponse* last, v1::GenerateResponse& next) {
    if (!last->has_chunk() || !next.has_chunk()) return false;
    v1::GenerateChunk* const to = last->mutable_chunk();
    const v1::GenerateChunk& from = next.chunk();
    if (to->sample_index() != from.sample_index()) return false;
    to->mutable_token_ids()->MergeFrom(from.token_ids());
    to->mutable_logprobs()->MergeFrom(from.logprobs());
    to->mutable_text()->append(from.text());
    return true;
  }

  static size_t Bytes(const v1::GenerateResponse& message) {
    constexpr size_t kEmpty = 64;
    const v1::GenerateChunk& chunk = message.chunk();
    return kEmpty + chunk.text().size() +
           (sizeof(uint32_t) + sizeof(float)) * chunk.token_ids_size();
  }
};

class GenerateReactor final
    : public StreamReactor<v1::GenerateResponse, GenerateResponseTraits> {
 public:
  using StreamReactor::StreamReactor;

  // Before the reactor is given to gRPC. `on_peer_gone` may be called from
  // then on, `on_over` at the very end.
  void Attach(absl::AnyInvocable<void()> on_peer_gone,
              absl::AnyInvocable<void()> on_over) {
    on_peer_gone_ = std::move(on_peer_gone);
    on_over_ = std::move(on_over);
  }

 private:
  void OnPeerGone() override {
    if (on_peer_gone_) on_peer_gone_();
  }
  void OnCallOver() override {
    if (on_over_) on_over_();
  }

  absl::AnyInvocable<void()> on_peer_gone_;
  absl::AnyInvocable<void()> on_over_;
};

}  // namespace baton

#endif  // BATON_SERVER_ROUTER_GENERATE_REACTOR_H_
