// full_matrix_test MODEL_FOLDER: runs all cells and prints the table.
#include <iostream>
#include <vector>

#include "tests/invariance/matrix.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: full_matrix_test MODEL_FOLDER\n";
    return 2;
  }
  const baton::Matrix matrix(argv[1]);
  std::vector<baton::CellResult> results;
  bool good = true;
  for (const baton::MatrixCell& cell : baton::AllCells()) {
    results.push_back(matrix.Run(cell));
    const std::string complaint = baton::Complaint(results.back());
    good &= complaint.empty();
    std::cerr << results.size() << ": " << cell.config().ToString() << " "
              << complaint << std::endl;
  }
  baton::PrintMatrix(matrix, results, std::cout);
  return good ? 0 : 1;
}
