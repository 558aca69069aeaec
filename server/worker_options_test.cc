#include "server/worker_options.h"

#include <gtest/gtest.h>

#include "base/field_error.h"

namespace baton {
namespace {

FlagsOutcome Parse(std::vector<std::string> arguments, WorkerOptions* options) {
  Flags flags("batond", "A worker.");
  AddWorkerFlags(&flags, options);
  arguments.push_back("--model=/m");
  const char* const environment[] = {nullptr};
  return flags.Parse(arguments, environment,
                     [&] { return ValidateWorkerOptions(*options); });
}

TEST(WorkerOptionsTest, AModelIsEnough) {
  WorkerOptions options;
  const FlagsOutcome outcome = Parse({}, &options);
  EXPECT_TRUE(outcome.run) << outcome.text;
  EXPECT_EQ(options.role, WorkerRole::kUnified);
  EXPECT_FALSE(options.isa.has_value());
}

TEST(WorkerOptionsTest, FlagsReachTheirOptions) {
  WorkerOptions options;
  const FlagsOutcome outcome =
      Parse({"--role=prefill", "--weights=f32", "--cache-dtype=f32",
             "--isa=array", "--transport=tcp", "--kv_blocks=5",
             "--max_running_requests=7", "--max_batched_tokens=64",
             "--max_chunk_tokens=8", "--kv_lease=2s", "--listen=0.0.0.0:1",
             "--drain_grace=3s", "--pin_threads=false", "--eplb_interval=500",
             "--eplb_window=100", "--eplb_max_layers_in_flight=2"},
            &options);
  ASSERT_TRUE(outcome.run) << outcome.text;
  EXPECT_EQ(options.role, WorkerRole::kPrefill);
  EXPECT_EQ(options.weights, WeightStorage::kF32);
  EXPECT_EQ(options.cache_dtype, CacheDtype::kF32);
  EXPECT_EQ(options.isa, VectorIsa::kArray);
  EXPECT_EQ(options.transport, UcxMode::kTcp);
  EXPECT_EQ(options.kv_blocks, 5u);
  EXPECT_EQ(options.engine.max_running_requests, 7u);
  EXPECT_EQ(options.engine.max_chunk_tokens, 8u);
  EXPECT_EQ(options.kv_lease, absl::Seconds(2));
  EXPECT_EQ(options.daemon.listen, "0.0.0.0:1");
  EXPECT_EQ(options.daemon.drain_grace, absl::Seconds(3));
  EXPECT_FALSE(options.pin_threads);
  EXPECT_EQ(options.eplb_interval, 500u);
  EXPECT_EQ(options.eplb_window, 100u);
  EXPECT_EQ(options.eplb_max_layers_in_flight, 2u);
}

TEST(WorkerOptionsTest, EveryContradictionNamesAFlag) {
  struct Case {
    std::vector<std::string> arguments;
    std::string named;
  };
  const std::vector<Case> cases = {
      {{"--max_chunk_tokens=513"}, "max_chunk_tokens"},
      {{"--kv_blocks=5", "--kv_cache_bytes=1MiB"}, "kv_blocks"},
      {{"--max_context_tokens=1"}, "max_context_tokens"},
      {{"--ep_size=3", "--local_ranks=2"}, "local_ranks"},
      {{"--local_ranks=2"}, "local_ranks"},
      {{"--kv_cache_bytes=0"}, "kv_cache_bytes"},
      {{"--kv_blocks=0"}, "kv_blocks"},
      {{"--numerics=faster"}, "numerics"},
      {{"--numerics=fast_bf16", "--weights=f32"}, "weights"},
      {{"--role=both"}, "role"},
      {{"--max_running_requests=0"}, "max_running_requests"},
      {{"--kv_lease=0s"}, "kv_lease"},
  };
  for (const Case& bad : cases) {
    WorkerOptions options;
    const FlagsOutcome outcome = Parse(bad.arguments, &options);
    EXPECT_EQ(outcome.exit_code, 2) << bad.named;
    EXPECT_NE(outcome.text.find(bad.named), std::string::npos) << outcome.text;
  }
}

TEST(WorkerOptionsTest, KvStaysOnLoopbackWhenGrpcDoes) {
  WorkerOptions options;
  for (const char* loopback : {"127.0.0.1:0", "localhost:5", "[::1]:5"}) {
    options.daemon.listen = loopback;
    EXPECT_EQ(options.UcxDevices(), "lo") << loopback;
  }
  options.daemon.listen = "0.0.0.0:5";
  EXPECT_EQ(options.UcxDevices(), "");
  options.transport_devices = "eth1";
  EXPECT_EQ(options.UcxDevices(), "eth1");
}

}  // namespace
}  // namespace baton
