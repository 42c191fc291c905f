// This file has a PrologueCase in an Arena: the parameters, which point into it, and what the outputs hold after a run.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include <prologue/kernels/attention_prologue/attention_prologue.h>

#include "tests/support/arena.h"
#include "tests/support/prologue_case.h"
#include "tests/support/prologue_data.h"

namespace prologue::test {

// int64, or int32.
IndexView place_indices(Arena& arena, const std::vector<int64_t>& values, bool wide);

// Appends the values of which `bytes` consists.
template <class T>
void append_values(const std::vector<unsigned char>& bytes, std::vector<T>& values) {
  const size_t before = values.size();
  values.resize(before + bytes.size() / sizeof(T));
  std::memcpy(static_cast<void*>(values.data() + before), bytes.data(), bytes.size());
}

// T is float, Float16 or BFloat16.
template <class T>
class PlacedPrologue {
 public:
  PlacedPrologue(Backend backend, const PrologueCase& c, const PrologueData<T>& data);

  Arena& arena() { return arena_; }
  const Arena& arena() const { return arena_; }
  AttentionPrologueParams& params() { return params_; }
  const AttentionPrologueParams& params() const { return params_; }
  const PrologueCase& prologue_case() const { return case_; }
  const PrologueData<T>& data() const { return data_; }
  DType cache_type(bool is_v) const { return is_v ? v_type_ : k_type_; }

  Status run() {
    return run([&](const Execution& execution) { return attention_prologue(params_, execution); });
  }
  Status run(const Arena::Operation& operation) { return arena_.run(operation); }

  // ---- after the run ----

  FaultRecord faults() const { return arena_.read(faults_).front(); }
  // Returns the heads of a token in q_out, k_out or v_out.
  std::vector<T> row(const MutableHeadsView& view, int64_t heads, int64_t dim, int64_t token) const;
  std::vector<T> q_row(int64_t token) const { return row(params_.q_out, case_.num_q_heads, case_.head_dim, token); }
  // Returns all heads of a slot, if the cache has the type T.
  std::vector<T> cache_row(bool is_v, int64_t slot) const;
  // Return a head of the cache as stored, and its scale.
  std::vector<unsigned char> cache_bytes(bool is_v, int64_t slot, int64_t head) const {
    return bytes_at(cache_head(is_v, slot, head), cache_head_bytes(is_v));
  }
  float cache_scale(bool is_v, int64_t slot, int64_t head) const;
  float cache_zero_point(bool is_v, int64_t slot, int64_t head) const;  // uint4 only
  // Returns `count` bytes at a pointer into an output.
  std::vector<unsigned char> bytes_at(const void* pointer, int64_t count) const;

  // Where a head of the cache, and its scale, is stored.
  const unsigned char* cache_head(bool is_v, int64_t slot, int64_t head) const;
  int64_t cache_head_bytes(bool is_v) const { return (is_v ? case_.v_width() : case_.head_dim) * dtype_bits(cache_type(is_v)) / 8; }
  const float* scale_of(bool is_v, int64_t slot, int64_t head) const;

  // Holds a buffer that a run may write to, and what it held before.
  struct Output {
    const unsigned char* data;
    std::vector<unsigned char> initial;
    const char* name;
  };
  const std::vector<Output>& outputs() const { return outputs_; }
  // Returns the index of the output that a pointer points into.
  size_t output_index(const void* pointer) const;

 private:
  void place_inputs();
  void place_weights();
  void place_positions_and_slots();
  void place_pages();
  void place_outputs();
  void place_cache();
  void place_groups();
  HeadGroup place_group(const PrologueCase& c, const PrologueData<T>& data);
  const T* place_values(const std::vector<T>& values, int64_t misalign);
  const void* place_weights(const CaseNorm& of, const std::vector<float>& values, int64_t misalign);
  void place_rope(const PrologueCase& c, const PrologueData<T>& data, Rope& rope);
  void scatter(const std::vector<T>& dense, int64_t heads, int64_t dim, int64_t token_stride, int64_t head_stride, T* to) const;
  template <class U>
  U* add_output(const std::vector<U>& values, int64_t misalign, const char* name);
  template <class U>
  U* add_output(int64_t count, int64_t misalign, const char* name);  // poisoned

  Arena arena_;
  PrologueCase case_;
  PrologueData<T> data_;
  DType k_type_, v_type_;
  AttentionPrologueParams params_;
  std::vector<HeadGroup> groups_;
  FaultRecord* faults_ = nullptr;
  std::vector<Output> outputs_;
};

}  // namespace prologue::test
