// What the sanitizers must not report about Debian's libraries, which are not
// instrumented. Compiled into every binary that links them; no file to find.
#include "base/sanitizers.h"

#ifdef BATON_TSAN
// Costs: a race between two gRPC callbacks is not seen. Test such code without
// gRPC.
extern "C" const char* __tsan_default_suppressions();
extern "C" const char* __tsan_default_suppressions() {
  return "race:libgrpc.so\n"
         "race:libgrpc++.so\n"
         "race:libgpr.so\n"
         "race:libupb.so\n"
         "race:libabsl_\n"
         "race:libssl.so\n"
         "race:libcrypto.so\n"
         "race:libcares.so\n"
         "race:libprotobuf.so\n"
         "race:libprometheus\n"
         "race:libcivetweb\n"
         "race:libucs.so\n"
         "race:libuct.so\n"
         "race:libucp.so\n"
         "race:^grpc::\n"
         "deadlock:libgrpc.so\n"
         "signal:libgrpc.so\n"
         "signal:libucs.so\n";
}
#endif

#ifdef BATON_ASAN
extern "C" const char* __lsan_default_suppressions();
extern "C" const char* __lsan_default_suppressions() {
  return "leak:libcares.so\n"
         "leak:libuct.so\n";
}
#endif
