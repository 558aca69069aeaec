#include "engine/drafter.h"

#include <algorithm>

#include "base/logging.h"

namespace baton {
namespace {

// Drafts that have a place: the last one is verified by the row before it, but
// all have rows themselves.
uint32_t DraftsWanted(const StepRows& rows, const SequenceSlot& slot) {
  if (slot.num_tokens >= rows.end_position) return 0;
  return std::min(rows.num_drafts, rows.end_position - slot.num_tokens);
}

}  // namespace

Drafter::Drafter(const EngineOptions& options, ModelRunner* model,
                 TokenDrawer* drawer)
    : model_(model),
      drawer_(drawer),
      hidden_size_(static_cast<int>(model->info().hidden_size)),
      batch_(options.max_rows(), options.max_running_requests,
             options.max_running_requests) {
  const size_t width = model->info().hidden_size;
  hidden_.resize(options.max_rows() * width);
  output_.resize(options.max_rows() * width);
  logits_.resize(size_t{options.max_running_requests} *
                 model->info().vocab_size);
  drafting_.reserve(options.max_running_requests);
}

void Drafter::MakeDrafts(const StepInput& input,
                         std::span<const CorrectedRows> corrected,
                         MatrixView<const float> hidden,
                         std::span<SequenceSlot> slots, StepOutput* output) {
  const Step step = {&input, corrected, hidden, slots, output};
  batch_.Clear();
  drafting_.clear();
  for (uint32_t i = 0; i < input.rows.size(); ++i) AddKnownTokens(step, i);
  const uint32_t agreed = input.num_draft_passes;
  for (uint32_t pass = 1; agreed > 0 ? pass <= agreed : batch_.num_rows() > 0;
       ++pass) {
    const bool goes_on = pass != agreed && ChainGoesOn(step);
    DrawDrafts(step, goes_on);
    if (!goes_on) drafting_.clear();
    ChainDrafts(step);
  }
}

bool Drafter::ChainGoesOn(const Step& step) const {
  return std::any_of(drafting_.begin(), drafting_.end(), [&](uint32_t index) {
    const StepRows& rows = step.input->rows[index];
    const SequenceSlot& slot = step.slots[rows.slot];
    return slot.num_drafts + 1 < DraftsWanted(rows, slot);
  });
}

void Drafter::AddKnownTokens(const Step& step, uint32_t index) {
  const StepRows& rows = step.input->rows[index];
  const CorrectedRows& corrected = step.corrected[index];
  SequenceSlot& slot = step.slots[rows.slot];
  if (corrected.num_rows == 0) return;
  const SampleOutput* drawn =
      rows.sample < 0 ? nullptr : &step.output->samples[rows.sample];
  const uint32_t num_drawn = drawn == nullptr ? 0 : drawn->num_tokens;
  // Tokens known before this step: of the rows from the host all, else the
  // newest, whose row the step before has written.
  const uint32_t first = corrected.first_position;
  const uint32_t num_known =
      rows.source == RowSource::kHost ? corrected.num_rows : 1;
  const uint32_t end =
      std::min(first + num_known + num_drawn, rows.end_position);
  const uint32_t start = slot.has_hidden ? first : first + 1;
  const auto state_of = [&](uint32_t position) {
    return step.hidden.row(
        static_cast<int>(corrected.first_row + position - first));
  };

  if (start < end) {
    batch_.StartSequence(*step.input, rows);
  }
  for (uint32_t p = start; p < end; ++p) {
    const uint32_t i = p - first;
    const uint32_t token = i < num_known
                               ? step.input->token_ids[rows.first_token + i]
                               : drawn->tokens[i - num_known].token_id;
    AddRow(token, p, i == 0 ? slot.hidden.data() : state_of(p - 1));
  }
  if (num_drawn > 0 && DraftsWanted(rows, slot) > 0) {
    batch_.WantLogits();
    drafting_.push_back(index);
  }
  slot.has_hidden = num_drawn == 0;
  if (slot.has_hidden) {
    std::copy_n(state_of(first + corrected.num_rows - 1), hidden_size_,
                slot.hidden.data());
  }
}

void Drafter::AddRow(uint32_t token, uint32_t position, const float* hidden) {
  std::copy_n(hidden, hidden_size_,
              &hidden_[size_t{batch_.num_rows()} * hidden_size_]);
  batch_.AddRow(token, position);
}

void Drafter::DrawDrafts(const Step& step, bool wants_states) {
  const int rows = static_cast<int>(batch_.num_rows());
  const MatrixView<float> logits =
      Dense(logits_.data(), static_cast<int>(batch_.num_logits_rows()),
            static_cast<int>(model_->info().vocab_size));
  ForwardOutput output = {.logits = logits,
                          .expert_rows = step.output->expert_rows};
  ForwardBatch batch = batch_.view();
  batch.expert_slots = step.input->expert_slots;
  if (wants_states) output.hidden = Dense(output_.data(), rows, hidden_size_);
  model_->Draft(batch, Dense<const float>(hidden_.data(), rows, hidden_size_),
                output);
  drawer_->DrawDrafts(*step.input, drafting_, logits, step.slots, step.output);
}

void Drafter::ChainDrafts(const Step& step) {
  // The drafter's states, in the order of drafting_, before hidden_ is written.
  for (size_t i = 0; i < drafting_.size(); ++i) {
    const size_t row = static_cast<size_t>(batch_.logits_rows()[i]);
    std::copy_n(&output_[row * hidden_size_], hidden_size_,
                &hidden_[i * hidden_size_]);
  }
  batch_.Clear();
  size_t kept = 0;
  for (size_t i = 0; i < drafting_.size(); ++i) {
    const StepRows& rows = step.input->rows[drafting_[i]];
    const SequenceSlot& slot = step.slots[rows.slot];
    // DraftsWanted counts from the newest token, not from the newest draft.
    if (slot.num_drafts >= DraftsWanted(rows, slot)) continue;
    drafting_[kept++] = drafting_[i];
    batch_.StartSequence(*step.input, rows);
    AddRow(slot.drafts[slot.num_drafts - 1],
           slot.num_tokens - 1 + slot.num_drafts, &hidden_[i * hidden_size_]);
    batch_.WantLogits();
  }
  drafting_.resize(kept);
}

}  // namespace baton
