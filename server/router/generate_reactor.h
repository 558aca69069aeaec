// The client's side of one Generate call.
#ifndef BATON_SERVER_ROUTER_GENERATE_REACTOR_H_
#define BATON_SERVER_ROUTER_GENERATE_REACTOR_H_

#include <grpcpp/grpcpp.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"
#include "proto/baton/v1/inference.pb.h"
#include "server/edge/request_gate.h"
#include "server/edge/stream_budget.h"
#include "server/edge/stream_reactor.h"

namespace baton {

// Chunks that wait for a slow reader become one chunk, and so does what is told
// of the prompt.
struct GenerateResponseTraits {
  static bool Merge(v1::GenerateResponse* last, v1::GenerateResponse& next) {
    if (last->has_prompt_logprobs() && next.has_prompt_logprobs()) {
      MergeTokens(last->mutable_prompt_logprobs(), next.prompt_logprobs());
      return true;
    }
    if (!last->has_chunk() || !next.has_chunk()) return false;
    v1::GenerateChunk* const to = last->mutable_chunk();
    const v1::GenerateChunk& from = next.chunk();
    if (to->sample_index() != from.sample_index()) return false;
    MergeTokens(to, from);
    to->mutable_text()->append(from.text());
    return true;
  }

  static size_t Bytes(const v1::GenerateResponse& message) {
    return TokenBytes(message.chunk()) + message.chunk().text().size() +
           TokenBytes(message.prompt_logprobs());
  }

 private:
  // Of chunks and prompts alike.
  template <typename Tokens>
  static void MergeTokens(Tokens* to, const Tokens& from) {
    to->mutable_token_ids()->MergeFrom(from.token_ids());
    to->mutable_logprobs()->MergeFrom(from.logprobs());
    to->mutable_top_logprobs()->MergeFrom(from.top_logprobs());
  }
  template <typename Tokens>
  static size_t TokenBytes(const Tokens& tokens) {
    constexpr size_t kEmpty = 64;
    size_t count = tokens.token_ids_size();
    for (const v1::TopLogprobs& top : tokens.top_logprobs()) {
      count += top.token_ids_size();
    }
    return kEmpty * (1 + tokens.top_logprobs_size()) +
           (sizeof(uint32_t) + sizeof(float)) * count;
  }
};

// Why a call ends before its answer does.
enum class EarlyEnd { kClientGone, kSlowReader, kCut };

class GenerateReactor final
    : public StreamReactor<v1::GenerateResponse, GenerateResponseTraits> {
 public:
  using OnEarlyEnd = absl::AnyInvocable<void(EarlyEnd)>;
  using OnFlowChange = absl::AnyInvocable<void(bool paused)>;

  // Leaves `gate` at the very end; null: it was not entered.
  GenerateReactor(grpc::CallbackServerContext* context, RequestGate* gate,
                  StreamBudget* streams)
      : StreamReactor(context, streams), gate_(gate) {
    if (gate_ == nullptr) return;
    gate_->OnCut(this, [early = early_] { early->Happen(EarlyEnd::kCut); });
  }

  // Once, by whoever will send and End. `on_early_end` is called when the
  // client goes or the gate cuts, whichever is first, or at once if that was
  // before; `on_flow` when the client reads more slowly than is sent, and when
  // it has caught up.
  void Attach(OnEarlyEnd on_early_end, OnFlowChange on_flow) {
    on_flow_ = std::move(on_flow);
    // The reactor may be gone as soon as the other side knows.
    const std::shared_ptr<Early> early = early_;  // See early_.
    early->Attach(std::move(on_early_end));
  }

  // Before that: it is to end early.
  std::optional<EarlyEnd> early_end() const { return early_->why(); }

 private:
  // Thread-safe.
  class Early {
   public:
    void Attach(OnEarlyEnd on_early_end) ABSL_LOCKS_EXCLUDED(mutex_) {
      std::optional<EarlyEnd> why;
      {
        absl::MutexLock lock(&mutex_);
        why = why_;
        if (!why.has_value()) on_early_end_ = std::move(on_early_end);
      }
      if (why.has_value()) on_early_end(*why);
    }
    std::optional<EarlyEnd> why() const ABSL_LOCKS_EXCLUDED(mutex_) {
      absl::MutexLock lock(&mutex_);
      return why_;
    }
    void Happen(EarlyEnd why) ABSL_LOCKS_EXCLUDED(mutex_) {
      OnEarlyEnd on_early_end;
      {
        absl::MutexLock lock(&mutex_);
        if (why_.has_value()) return;
        why_ = why;
        on_early_end = std::move(on_early_end_);
      }
      if (on_early_end) on_early_end(why);
    }

   private:
    mutable absl::Mutex mutex_;
    std::optional<EarlyEnd> why_ ABSL_GUARDED_BY(mutex_);
    OnEarlyEnd on_early_end_ ABSL_GUARDED_BY(mutex_);
  };

  void OnPeerGone() override {
    early_->Happen(is_cut() ? EarlyEnd::kSlowReader : EarlyEnd::kClientGone);
  }
  void OnFlow(bool paused) override { on_flow_(paused); }
  void OnCallOver() override {
    if (gate_ != nullptr) gate_->Leave(this);
  }

  RequestGate* const gate_;
  OnFlowChange on_flow_;
  // Shared with the gate, which may cut the call while it ends.
  const std::shared_ptr<Early> early_ = std::make_shared<Early>();
};

}  // namespace baton

#endif  // BATON_SERVER_ROUTER_GENERATE_REACTOR_H_
