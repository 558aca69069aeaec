// The client's side of one Generate call.
#ifndef BATON_SERVER_ROUTER_GENERATE_REACTOR_H_
#define BATON_SERVER_ROUTER_GENERATE_REACTOR_H_

#include <grpcpp/grpcpp.h>

#include <cstddef>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"
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
  // `on_over` is called at the very end.
  GenerateReactor(grpc::CallbackServerContext* context,
                  absl::AnyInvocable<void()> on_over)
      : StreamReactor(context), on_over_(std::move(on_over)) {}

  // Once, by whoever will End. `on_peer_gone` is called when the client goes,
  // or at once if it went already.
  void Attach(absl::AnyInvocable<void()> on_peer_gone)
      ABSL_LOCKS_EXCLUDED(mutex_) {
    {
      absl::MutexLock lock(&mutex_);
      if (!peer_gone_) {
        on_peer_gone_ = std::move(on_peer_gone);
        return;
      }
    }
    on_peer_gone();
  }

 private:
  void OnPeerGone() override ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::AnyInvocable<void()> on_peer_gone;
    {
      absl::MutexLock lock(&mutex_);
      peer_gone_ = true;
      on_peer_gone = std::move(on_peer_gone_);
    }
    if (on_peer_gone) on_peer_gone();
  }
  void OnCallOver() override {
    if (on_over_) on_over_();
  }

  absl::AnyInvocable<void()> on_over_;
  absl::Mutex mutex_;
  bool peer_gone_ ABSL_GUARDED_BY(mutex_) = false;
  absl::AnyInvocable<void()> on_peer_gone_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace baton

#endif  // BATON_SERVER_ROUTER_GENERATE_REACTOR_H_
