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
  EXPECT_TRUE(options.engine.prefix_cache);
  EXPECT_FALSE(options.isa.has_value());
}

TEST(WorkerOptionsTest, FlagsReachTheirOptions) {
  WorkerOptions options;
  const FlagsOutcome outcome = Parse(
      {"--role=prefill", "--weights=f32", "--cache-dtype=f32", "--isa=array",
       "--transport=tcp", "--kv_blocks=5", "--max_running_requests=7",
       "--max_batched_tokens=64", "--max_chunk_tokens=8", "--kv_lease=2s",
       "--listen=0.0.0.0:1", "--drain_grace=3s", "--pin_threads=false",
       "--eplb_interval=500", "--prefix_cache=false", "--eplb_window=100",
       "--eplb_max_layers_in_flight=2"},
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
  EXPECT_FALSE(options.engine.prefix_cache);
  EXPECT_EQ(options.eplb_interval, 500u);
  EXPECT_EQ(options.eplb_window, 100u);
  EXPECT_EQ(options.eplb_max_layers_in_flight, 2u);
}

TEST(WorkerOptionsTest, AGroupMustAgreeOnWhatItsFlagsSay) {
  const std::vector<std::string> arguments = {
      "--ep_size=64", "--local_ranks=16", "--rank_offset=48", "--leader=h:1"};
  WorkerOptions one;
  ASSERT_TRUE(Parse(arguments, &one).run);
  EXPECT_EQ(one.group_flags.ep_size, 64u);
  EXPECT_EQ(one.group_flags.local_ranks, 16u);
  EXPECT_EQ(one.group_flags.rank_offset, 48u);
  EXPECT_EQ(one.group_flags.leader, "h:1");
  for (const char* other :
       {"--role=decode", "--cache_dtype=f32", "--numerics=fast",
        "--num_redundant_experts=64", "--transport=tcp",
        "--max_context_tokens=100", "--max_running_requests=3",
        "--max_batched_tokens=600", "--max_chunk_tokens=8",
        "--num_draft_tokens=1", "--all_interval=3", "--any_interval=3",
        "--max_prefill_wait=1s", "--watchdog=1s", "--eplb_interval=3",
        "--eplb_window=3", "--eplb_max_layers_in_flight=3"}) {
    WorkerOptions two;
    ASSERT_TRUE(Parse({other}, &two).run) << other;
    EXPECT_NE(GroupOptionsOf(two), GroupOptionsOf({})) << other;
  }
  WorkerOptions ports;
  ASSERT_TRUE(Parse({"--listen=h:2", "--kv_blocks=7"}, &ports).run);
  EXPECT_EQ(GroupOptionsOf(ports), GroupOptionsOf({}));
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
      {{"--ep_size=1025"}, "ep_size"},
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
