// What every fuzz target defines; fuzz_main.cc drives it.
#ifndef BATON_TESTS_FUZZ_FUZZ_TARGET_H_
#define BATON_TESTS_FUZZ_FUZZ_TARGET_H_

#include <string>
#include <string_view>
#include <vector>

namespace baton {

// Good inputs, to begin from: made by the encoders of today's code. Those that
// once broke something lie in corpus/NAME.txt, one a line, in hexadecimal.
std::vector<std::string> FuzzSeeds();

// Any bytes. Dies of whatever is wrong.
void FuzzOne(std::string_view bytes);

}  // namespace baton

#endif  // BATON_TESTS_FUZZ_FUZZ_TARGET_H_
