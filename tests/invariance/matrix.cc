#include "tests/invariance/matrix.h"

#include <array>
#include <cstddef>
#include <numeric>
#include <utility>

#include "absl/strings/str_format.h"
#include "tests/invariance/covering_rows.h"
#include "tests/invariance/matrix_requests.h"

namespace baton {
namespace {

constexpr uint32_t kTightPoolBlocks = 4;

constexpr std::array<uint32_t, 3> kDepths = {1, 2, 3};
constexpr std::array<uint32_t, 5> kDrafts = {0, 1, 3, 5, kMaxDraftTokens};
constexpr int kAdaptive = 4;  // Of kDrafts.
constexpr std::array<uint32_t, 3> kBatches = {1, 8, 64};

// Axes: depth, drafts, batch, placement, pool.
MatrixCell CellOf(const AxisRow& row) {
  return {.depth = kDepths[row[0]],
          .drafts = kDrafts[row[1]],
          .adaptive = row[1] == kAdaptive,
          .batch = kBatches[row[2]],
          .split = row[3] == 1,
          .tight_pool = row[4] == 1};
}

std::vector<AxisRow> PossibleRows() {
  std::vector<AxisRow> rows = AllRows({3, 5, 3, 2, 2});
  std::erase_if(rows,
                [](const AxisRow& row) { return !IsPossible(CellOf(row)); });
  return rows;
}

std::vector<MatrixCell> CellsOf(const std::vector<AxisRow>& rows) {
  std::vector<MatrixCell> cells;
  for (const AxisRow& row : rows) cells.push_back(CellOf(row));
  return cells;
}

uint32_t Sum(const std::array<uint32_t, kMaxDraftTokens>& counts) {
  return std::accumulate(counts.begin(), counts.end(), 0u);
}

std::string DraftsName(const MatrixCell& cell) {
  return cell.adaptive ? "adaptive" : absl::StrFormat("%d", cell.drafts);
}

std::string Entry(const std::vector<CellResult>& results,
                  const MatrixCell& cell) {
  const MachineConfig config = cell.config();
  for (const CellResult& result : results) {
    if (result.cell.config().ToString() != config.ToString()) continue;
    std::string entry = Complaint(result).empty() ? "=" : "FAILS";
    if (cell.tight_pool) {
      absl::StrAppendFormat(&entry, " (%d)", result.run.num_preemptions);
    }
    return entry;
  }
  return IsPossible(cell) ? "not run" : "-";
}

}  // namespace

MachineConfig MatrixCell::config() const {
  return {.split = split ? PoolSplit::kSharedMemory : PoolSplit::kUnified,
          .max_running_requests = batch,
          .isa = SupportedVectorIsas().back(),
          .cache = CacheDtype::kBf16,
          .pipeline_depth = depth,
          .device_thread = depth > 1,
          .num_draft_tokens = drafts,
          .adaptive_verification = adaptive,
          .pool_blocks = tight_pool ? kTightPoolBlocks : 256u};
}

bool IsPossible(const MatrixCell& cell) {
  return cell.batch > 1 || !cell.tight_pool;
}

std::vector<MatrixCell> AllCells() { return CellsOf(PossibleRows()); }

std::vector<MatrixCell> PairwiseCells() {
  return CellsOf(CoveringRows(PossibleRows()));
}

Matrix::Matrix(std::string model_folder)
    : model_folder_(std::move(model_folder)), requests_(MatrixRequests()) {
  const MachineConfig config = MatrixCell{}.config();
  const auto run_alone = [&] {
    return RunRequests(model_folder_, config, SamplesAlone(requests_))
        .sequences;
  };
  AddStops(run_alone(), &requests_);
  expected_ = run_alone();
}

CellResult Matrix::Run(const MatrixCell& cell) const {
  CellResult result = {
      .cell = cell,
      .run = RunRequests(model_folder_, cell.config(), requests_)};
  result.same = result.run.sequences == expected_;
  return result;
}

std::string Complaint(const CellResult& result) {
  if (!result.same) return "other tokens or log-probabilities";
  if (result.cell.tight_pool && result.run.num_preemptions == 0) {
    return "nothing was preempted";
  }
  if (result.cell.drafts > 0 && Sum(result.run.drafts_accepted) == 0) {
    return "no draft was accepted";
  }
  return "";
}

void PrintMatrix(const Matrix& matrix, const std::vector<CellResult>& results,
                 std::ostream& out) {
  out << absl::StrFormat(
      "%d requests, %d samples, %d tokens, digest %016x. =: the same tokens "
      "and log-probabilities, bit for bit; in brackets the preemptions; -: "
      "impossible (a sequence that runs alone is never preempted). "
      "Accepted: drafts of those verified, all cells of the line.\n\n",
      matrix.requests().size(), matrix.expected().size(),
      NumTokens(matrix.expected()), Digest(matrix.expected()));
  out << "| depth | drafts |";
  std::string rule = "|---|---|";
  for (const char* placement : {"", " split"}) {
    for (const char* pool : {"", " tight"}) {
      for (const uint32_t batch : kBatches) {
        out << " " << batch << placement << pool << " |";
        rule += "---|";
      }
    }
  }
  out << " accepted |\n" << rule << "---|\n";
  for (const AxisRow& row : AllRows({3, 5})) {
    uint32_t verified = 0;
    uint32_t accepted = 0;
    const MatrixCell line = CellOf({row[0], row[1], 0, 0, 0});
    out << "| " << line.depth << " | " << DraftsName(line) << " |";
    for (const AxisRow& column : AllRows({2, 2, 3})) {
      const MatrixCell cell =
          CellOf({row[0], row[1], column[2], column[0], column[1]});
      out << " " << Entry(results, cell) << " |";
    }
    for (const CellResult& result : results) {
      if (result.cell.depth != line.depth ||
          DraftsName(result.cell) != DraftsName(line)) {
        continue;
      }
      verified += Sum(result.run.drafts_verified);
      accepted += Sum(result.run.drafts_accepted);
    }
    out << absl::StrFormat(" %d of %d |\n", accepted, verified);
  }
}

}  // namespace baton
