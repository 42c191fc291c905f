// This file has a call of mla_prologue with random data in an Arena, and its comparison with the oracle.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <prologue/kernels/mla_prologue/mla_prologue.h>

#include "tests/support/arena.h"
#include "tests/support/random.h"

namespace prologue::test {

enum class MlaCacheKind { none, of_dtype, float32, float16, fp8, fp8_tensor, e5m2_tensor, record, apart, only_latent, only_rope };
inline constexpr MlaCacheKind kMlaCacheKinds[] = {MlaCacheKind::none,        MlaCacheKind::of_dtype, MlaCacheKind::float32,
                                                  MlaCacheKind::float16,     MlaCacheKind::fp8,      MlaCacheKind::fp8_tensor,
                                                  MlaCacheKind::e5m2_tensor, MlaCacheKind::record,   MlaCacheKind::apart,
                                                  MlaCacheKind::only_latent, MlaCacheKind::only_rope};

enum class MlaNorm { none, weight, float_weight, no_weight };

struct MlaCase {
  int64_t num_tokens = 0, num_q_heads = 0;
  int64_t kv_lora_rank = 512, qk_rope_head_dim = 64;
  bool latent = true, k = true;
  MlaNorm norm = MlaNorm::weight;
  MlaNorm k_norm = MlaNorm::none;  // of k_pe
  float weight_offset = 0.0f;
  bool rotates = true;
  RopeStyle style = RopeStyle::interleaved;
  RopeSource source = RopeSource::table;
  DType table_type = DType::f32;
  bool inverse = false;
  PastTable past_table = PastTable::record;
  int64_t max_position = 97;
  MlaCacheKind cache = MlaCacheKind::of_dtype;
  int64_t page_size = 16;
  bool int64_positions = true, int64_slots = true;
  bool positions = true;      // may be false only if nothing needs them
  int64_t missing_slots = 0;  // slot_mapping ends so many tokens before the last
  bool outputs = true;        // kv_c_out and k_pe_out
  bool in_place = false;
  int64_t padding = 0;  // elements more than a row has, in every row of every array
  bool misaligned = false;
  bool bad_tokens = true;  // padding, negative slots, positions and slots out of range
  bool overlaps = false;
  uint64_t seed = 1;
};

std::string describe(const MlaCase& c);

// T is the element type of the call.
template <class T>
class PlacedMla {
 public:
  PlacedMla(Backend backend, const MlaCase& c);
  PlacedMla(const PlacedMla&) = delete;

  Status run();
  const MlaPrologueParams& params() const { return params_; }
  MlaPrologueParams& params() { return params_; }
  Arena& arena() { return arena_; }
  const MlaCase& mla_case() const { return c_; }
  const void* entries() const { return entries_; }  // the arrays of the cache; null: there is none
  const void* rope_entries() const { return rope_entries_; }

  // After run(): every element of every array that may be written, against the oracle.
  void expect_matches() const;
  // Returns the bytes of all arrays that may be written.
  std::vector<unsigned char> bytes() const;

 private:
  struct Rows {  // an input and its output
    std::vector<T> x;
    T* y = nullptr;
    std::vector<T> before;  // of y
    int64_t x_stride = 0, y_stride = 0, x_head = 0, y_head = 0;
  };
  Rows make_rows(int64_t num_heads, int64_t width, bool output, const void*& x, void*& y);
  void make_cache();
  void make_indices();

  MlaCase c_;
  Random random_;
  Arena arena_;
  MlaPrologueParams params_;
  Rows latent_, k_, q_;
  std::vector<double> weight_, k_weight_, cos_, sin_;  // [rows, qk_rope_head_dim / 2]
  std::vector<float> inv_freq_;
  std::vector<int64_t> positions_, slots_;
  uint8_t *entries_ = nullptr, *rope_entries_ = nullptr;
  int64_t num_slots_ = 0;
  float scale_ = 1.0f;
  FaultRecord* faults_ = nullptr;
  uint8_t* token_faults_ = nullptr;
};

}  // namespace prologue::test
