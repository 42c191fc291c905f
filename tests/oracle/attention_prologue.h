// Computes the attention prologue in float64, straight from its formulas; it has no code of the library. Tensors are dense [num_tokens,
// heads, head_dim]; where things lie in memory, and how a cache stores a value, is the test's business.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

namespace prologue::test::oracle {

struct NormInput {
  bool enabled = false;
  bool after_rotation = false;
  bool layer = false;       // otherwise rms
  bool over_token = false;  // otherwise over a head
  double eps = 0.0;
  double weight_offset = 0.0;
  std::vector<double> weight, bias;  // empty: none; [width], or [heads * width]
};

struct PrologueInput {
  int64_t num_tokens = 0;
  int64_t num_q_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t v_head_dim = 0;  // 0: head_dim
  bool with_k = true, with_v = true;
  std::vector<double> q, k, v;
  std::vector<double> q_bias, k_bias, v_bias;  // empty: none
  NormInput q_norm, k_norm, v_norm;

  int64_t rotary_dim = 0;
  int64_t rotary_offset = 0;
  int64_t num_blocks = 1;  // of rotary_dim / num_blocks channels, each with pairs of its own
  bool interleaved = false;
  bool inverse = false;
  // A table is [max_position, channels of a block], cos then sin; with table_per_token it has a row for each token.
  std::vector<double> table;
  bool table_per_token = false;
  std::vector<double> inv_freq;  // not empty: instead of a table
  double attention_factor = 1.0;
  int64_t num_axes = 1;
  std::vector<int64_t> pair_axis;  // empty: that of the pair's block, or 0 where there is one axis
  int64_t max_position = 0;        // 0: positions have no upper bound
  bool identity_past_table = false;

  std::vector<int64_t> positions;  // [num_axes, num_tokens]; empty: derived, or all 0 where there are no sequences
  std::vector<int64_t> slots;      // empty: derived where `derive_slots`, otherwise K and V go nowhere; later tokens have none
  bool derive_slots = false;
  std::vector<int64_t> cu_seqlens;            // empty: no sequences
  std::vector<int64_t> cache_lens, seq_lens;  // one of them: tokens before the step, or after it
  std::vector<std::vector<int64_t>> block_table;
  std::vector<int64_t> kv_indptr, kv_indices;  // not empty: in place of block_table
  std::vector<int64_t> kv_last_page_len;       // not empty: in place of cache_lens and seq_lens
  int64_t ring_size = 0;
  std::vector<int64_t> position_offsets;  // empty, one, or one for each sequence
  int64_t num_pages = 0;
  int64_t page_size = 1;

  int64_t hadamard_block = 0, v_hadamard_block = 0;  // 0: none

  double q_constant = 1.0;
  int q_by_position = 0;  // 1: llama4, 2: logn
  double q_a = 0.0, q_b = 1.0;
  double k_constant = 1.0, v_constant = 1.0;  // that K and V are multiplied by at the end

  bool sigmoid = false;  // of Q, at the end

  // Other heads of the same tokens, each as the Q of an input without K and V. What says where tokens are is that of this input, of whose axes
  // a group has the first.
  std::vector<PrologueInput> groups;

  // If steps are rounded in between, this is half an ulp relative to the value, and its floor.
  double step_rounding = 0.0, step_floor = 0.0;
};

// Holds a value, and what its error in float32 grows with: the sum of the absolute terms that made it, earlier errors carried along.
struct Element {
  double value = 0.0;
  double scale = 0.0;
};
using Row = std::vector<Element>;

enum class TokenState { untouched, zero, written };
enum class TokenFault { none, position, slot, page, too_long };

struct PrologueOutput {
  std::vector<TokenState> state;          // per token
  std::vector<TokenFault> faults;         // per token
  std::vector<Row> q, k, v;               // per token, empty unless written
  std::map<int64_t, int64_t> slot_token;  // slot -> the token whose K and V it holds
  std::vector<PrologueOutput> groups;     // their rows are in `q`
};

PrologueOutput attention_prologue(const PrologueInput& in);

}  // namespace prologue::test::oracle
