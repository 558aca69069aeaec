// The kernels of one instruction set, as plain functions on plain data. The
// launchers (kernels/*.cc) check shapes, split the work, and call through this.
//
// Nothing here has inline functions: see cpu/vector.h.
#ifndef BATON_KERNELS_CPU_KERNEL_TABLE_H_
#define BATON_KERNELS_CPU_KERNEL_TABLE_H_

#include <cstddef>
#include <cstdint>

namespace baton {

enum class VectorIsa;
struct LogitBias;
struct RoutingOptions;
struct SampledToken;

// Consecutive panels of a packed weight times some rows.
enum class LinearArithmetic {
  kFma,
  // Of bf16 panels alone: x rounded to bf16, pairs of k.
  kBf16Dots,
  // The same bits by AVX512_BF16, which the CPU must have.
  kNativeBf16Dots,
};
struct LinearBlock {
  const float* x;
  ptrdiff_t x_stride;
  const void* panels;       // The first panel; in + in % 2 rows of 16 for bf16.
  const void* next_panels;  // Of the work after this: fetched ahead.
  bool is_bf16;
  LinearArithmetic arithmetic;
  float* rounded;  // [rows, in + in % 2], for dots alone.
  int rows;
  int in;
  int out;  // Outputs of this block: panels = ceil(out / 16).
  float* y;
  ptrdiff_t y_stride;
};

struct CombineRow {
  const float* shared;
  const float* routed;
  ptrdiff_t routed_stride;
  const float* weights;
  int top_k;
  int cols;
  float* y;
};

struct RouteRow {
  const RoutingOptions* options;
  const float* logits;
  int num_experts;
  int32_t* experts;
  float* weights;
};

// What a call for one tile goes on from, and leaves behind: of each pair.
struct AttentionCarry {
  float* max;
  float* sum;
  bool is_first;  // Nothing yet; z is then only written.
};

// Some heads of consecutive rows of one sequence. A key's row in the cache:
// latent_dim values, then rope_dim values; value_dim values from value_offset
// on are what is summed up.
struct AttentionBlock {
  const std::byte* pool;
  const uint32_t* block_table;
  uint32_t next_block;  // Of the work after this: its keys are fetched ahead.
  const int32_t* positions;  // [rows]
  int first_position;        // Of the keys.
  size_t block_bytes;
  size_t layer_offset_bytes;
  bool is_bf16;
  int latent_dim;
  int rope_dim;
  int key_pitch;  // From key to key.
  int value_offset;
  int value_dim;
  int rows;
  int heads;      // rows * heads <= kMaxAttentionPairs.
  int row_pitch;  // From row to row in q and z: the number of all heads.
  float scale;
  const float* q_latent;
  ptrdiff_t q_latent_stride;
  const float* q_rope;
  ptrdiff_t q_rope_stride;
  float* z;
  ptrdiff_t z_stride;
  float* scratch;  // AttentionScratchFloats(latent_dim, rope_dim)
  // Null: z is the whole result. Else it is not divided by the sum, and all
  // positions are in one tile.
  const AttentionCarry* carry;
};
inline constexpr int kMaxAttentionPairs = 64;
// 64 queries, 64 keys, values padded to multiples of four, their scores, and 16
// rows of the cache.
size_t AttentionScratchFloats(int latent_dim, int rope_dim);

// A row's logits with bias and penalties.
struct LogitsRow {
  const float* logits;
  int vocab;
  float repetition_penalty;
  float presence_penalty;
  float frequency_penalty;
  const uint32_t* token_counts;  // Null: no penalties.
  const uint32_t* uncounted;
  int num_uncounted;
  const LogitBias* bias;
  int num_bias;
  const uint32_t* forbidden;
  int num_forbidden;
  float* modified;  // [vocab]
};

struct DrawRow {
  const float* logits;
  int vocab;
  float temperature;
  float top_p;
  float min_p;
  uint32_t top_k;
  uint64_t seed;
  uint32_t sample_index;
  uint64_t position;
  int32_t* scratch;  // DrawScratchSize(vocab)
  // Results. kept [vocab], or null: z of the kept tokens, -infinity of others.
  // It may be `logits`.
  float* kept;
  uint32_t token_id;
  float max;  // Of `logits`.
};

// Three arrays of candidates.
size_t DrawScratchSize(int vocab);

struct ScoreRow {
  const float* logits;
  int vocab;
  const float* max;  // Of `logits`, or null: not known.
  uint32_t token_id;
  // Results.
  float logprob;
  int num_top;
  SampledToken* top;  // [num_top]
};

struct KernelTable {
  void (*linear)(const LinearBlock& block);
  void (*rms_norm)(const float* x, const float* weight, float eps, int cols,
                   float* y);
  void (*apply_rope)(float* x, const float* cos, const float* sin, int cols);
  void (*silu_mul)(const float* gate, const float* up, int cols, float* y);
  void (*add_in_place)(float* x, const float* y, int cols);
  void (*combine_experts)(const CombineRow& row);
  void (*route_experts)(const RouteRow& row);
  void (*attention)(const AttentionBlock& block);
  void (*modify_logits)(const LogitsRow& row);
  void (*draw)(DrawRow& row);
  void (*score)(ScoreRow& row);
};

// Always the same table for an isa; the CPU must support it.
const KernelTable& KernelsFor(VectorIsa isa);

}  // namespace baton

#endif  // BATON_KERNELS_CPU_KERNEL_TABLE_H_
