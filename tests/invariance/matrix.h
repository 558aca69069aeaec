// Every way to run a step that must not change a bit, in every combination.
#ifndef BATON_TESTS_INVARIANCE_MATRIX_H_
#define BATON_TESTS_INVARIANCE_MATRIX_H_

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "tests/invariance/token_machine.h"

namespace baton {

// {async off, depth 2, depth 3} x {no drafts, 1, 3, 5, adaptive} x
// {batch 1, 8, 64} x {unified, split} x {ample pool, one that forces
// preemption}. Devices of depth 2 and 3 have threads of their own.
struct MatrixCell {
  uint32_t depth = 1;
  uint32_t drafts = 0;
  bool adaptive = false;
  uint32_t batch = 1;
  bool split = false;
  bool tight_pool = false;

  MachineConfig config() const;
};

// A sequence that runs alone is never preempted.
bool IsPossible(const MatrixCell& cell);
// All possible ones, in the order of the table.
std::vector<MatrixCell> AllCells();
// A few, in which every two settings meet that can.
std::vector<MatrixCell> PairwiseCells();

struct CellResult {
  MatrixCell cell;
  bool same = false;  // All tokens and log-probabilities.
  MachineResult run;
};

// Owns the requests and what they must give: what their samples give, each
// asked for alone, one after the other, without drafts.
class Matrix {
 public:
  explicit Matrix(std::string model_folder);

  const std::vector<GenerationRequest>& requests() const { return requests_; }
  // Of SamplesAlone.
  const std::vector<GeneratedSequence>& expected() const { return expected_; }
  CellResult Run(const MatrixCell& cell) const;

 private:
  const std::string model_folder_;
  std::vector<GenerationRequest> requests_;
  std::vector<GeneratedSequence> expected_;
};

// What is wrong with it; empty: nothing.
std::string Complaint(const CellResult& result);

// Markdown: what was computed, and a line for each depth and draft count.
void PrintMatrix(const Matrix& matrix, const std::vector<CellResult>& results,
                 std::ostream& out);

}  // namespace baton

#endif  // BATON_TESTS_INVARIANCE_MATRIX_H_
