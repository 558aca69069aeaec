// What comes in by the engine's inbox.
#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "engine/llm_engine.h"

namespace baton {

bool LLMEngine::DrainInbox() {
  inbox_.Drain(&commands_);
  for (EngineCommand& command : commands_) {
    std::visit([this](auto& known) { OnCommand(known); }, command);
  }
  const bool busy = !commands_.empty();
  commands_.clear();
  return busy;
}

void LLMEngine::OnCommand(SubmitCommand& command) {
  std::optional<SequenceId> first_sample;
  for (std::unique_ptr<SequenceMetadata>& sample : command.samples) {
    SequenceMetadata* sequence = AddSequence(std::move(sample));
    if (sequence == nullptr) continue;
    if (!first_sample.has_value()) first_sample = sequence->id;
    if (command.samples.size() > 1) sequence->first_sample = first_sample;
    scheduler_.Enqueue(sequence);
  }
}

SequenceMetadata* LLMEngine::AddSequence(
    std::unique_ptr<SequenceMetadata> added) {
  const GenerationRequest& request = added->request;
  const auto [place, is_new] =
      sequences_.try_emplace({request.id, request.sample_index}, nullptr);
  if (!is_new) {
    --num_waiting_;
    TellFinished(*added, absl::AlreadyExistsError("the request is live"),
                 environment_.clock->Now());
    return nullptr;
  }
  added->id = ++newest_sequence_;
  added->max_total_tokens = static_cast<uint32_t>(std::min<uint64_t>(
      uint64_t{request.original_prompt_tokens} + request.max_tokens,
      limits_.max_context_tokens));
  by_id_.emplace(added->id, added.get());
  if (request.deadline != absl::InfiniteFuture()) {
    deadlines_.emplace(request.deadline, added->id);
  }
  place->second = std::move(added);
  return place->second.get();
}

void LLMEngine::OnCommand(AbortCommand& command) {
  const uint32_t first = command.sample_index.value_or(0);
  auto place = sequences_.lower_bound({command.id, first});
  while (place != sequences_.end() && place->first.first == command.id) {
    const auto& [key, sequence] = *place++;  // End may erase it.
    if (command.sample_index.has_value() && key.second != first) break;
    sequence->MarkUnwanted(command.since);
    End(sequence.get(), absl::CancelledError("aborted"));
  }
}

void LLMEngine::OnCommand(PauseCommand& command) {
  auto place = sequences_.lower_bound({command.id, command.first_sample});
  for (; place != sequences_.end(); ++place) {
    const auto& [id, sample] = place->first;
    if (id != command.id) break;
    if (sample - command.first_sample >= command.num_samples) break;
    place->second->paused = command.paused;
  }
}

void LLMEngine::OnCommand(ShedCommand& command) {
  const auto waiting = scheduler_.waiting();
  std::vector<SequenceMetadata*> youngest;
  for (auto it = waiting.rbegin();
       it != waiting.rend() && youngest.size() < command.count; ++it) {
    // A preempted one has a client who reads.
    if ((*it)->first_admitted == absl::InfiniteFuture()) {
      youngest.push_back(*it);
    }
  }
  for (SequenceMetadata* sequence : youngest) End(sequence, command.status);
}

void LLMEngine::OnCommand(KvTransferEvent& event) {
  if (const auto* ended = std::get_if<KvExportEnded>(&event)) {
    OnExportEnded(*ended);
  } else {
    OnImportEnded(std::get<KvImportEnded>(event));
  }
}

}  // namespace baton
