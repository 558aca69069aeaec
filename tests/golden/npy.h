// One-dimensional float32 arrays in NumPy's file format.
#ifndef BATON_TESTS_GOLDEN_NPY_H_
#define BATON_TESTS_GOLDEN_NPY_H_

#include <string>
#include <vector>

namespace baton {

// Dies if the file is anything else.
std::vector<float> ReadNpyF32(const std::string& path);

}  // namespace baton

#endif  // BATON_TESTS_GOLDEN_NPY_H_
