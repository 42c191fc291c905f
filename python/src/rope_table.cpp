// The table of cos and sin of a scheme, and the axes of MRoPE: what prologue_attention/_rope_table.py reads in a config.
#include <prologue/layers/rope/position_axes.h>
#include <prologue/layers/rope/rope_table.h>

#include <tvm/ffi/container/array.h>

#include <algorithm>
#include <cstdlib>
#include <new>
#include <optional>
#include <vector>

#include "arguments.h"

namespace prologue::python {
namespace {

std::optional<double> given_number(Arguments& arguments, Name name) {
  return arguments.given(name) ? std::optional(arguments.number(name)) : std::nullopt;
}

template <typename T>
std::vector<T> numbers(Arguments& arguments, Name name) {
  if (!arguments.given(name)) return {};
  const auto list = reinterpret_cast<const tvm::ffi::AnyView&>(arguments.raw(name)).cast<tvm::ffi::Array<T>>();
  return {list.begin(), list.end()};
}

struct HostMemory {
  void AllocData(DLTensor* tensor) {
    tensor->data = std::malloc(std::max<size_t>(tvm::ffi::GetDataSize(*tensor), 1));
    if (tensor->data == nullptr) throw std::bad_alloc();
  }
  void FreeData(DLTensor* tensor) { std::free(tensor->data); }
};

template <typename T>
tvm::ffi::Tensor tensor_of(const std::vector<T>& values, std::vector<int64_t> shape, DLDataType type) {
  tvm::ffi::Tensor result = tvm::ffi::Tensor::FromNDAlloc(HostMemory(), {shape.data(), shape.size()}, type, {kDLCPU, 0});
  std::copy(values.begin(), values.end(), static_cast<T*>(result.data_ptr()));
  return result;
}

tvm::ffi::Any run_mrope_pair_axis(Arguments& arguments) {
  const std::vector<int64_t> sections = numbers<int64_t>(arguments, "sections");
  const bool interleaved = arguments.flag("interleaved");
  arguments.require_all_read();
  auto axes = mrope_pair_axis(sections, interleaved);
  check(axes.status());
  return tensor_of(*axes, {static_cast<int64_t>(axes->size())}, {kDLUInt, 8, 1});
}

tvm::ffi::Any run_rope_cos_sin(Arguments& arguments) {
  enum class Scheme { plain, linear, dynamic, yarn, longrope, llama3, proportional };
  RopeConfig config;
  config.rotary_dim = arguments.integer("rotary_dim");
  config.theta = arguments.number("theta");
  const auto scheme = arguments.choice<Scheme>("scheme", {{"default", Scheme::plain},
                                                          {"linear", Scheme::linear},
                                                          {"dynamic", Scheme::dynamic},
                                                          {"yarn", Scheme::yarn},
                                                          {"longrope", Scheme::longrope},
                                                          {"llama3", Scheme::llama3},
                                                          {"proportional", Scheme::proportional}});
  const double factor = arguments.number("factor");
  const int64_t original = arguments.integer("original_max_position");
  const std::optional<double> attention_factor = given_number(arguments, "attention_factor");
  const double beta_fast = arguments.number("beta_fast"), beta_slow = arguments.number("beta_slow");
  const double mscale = arguments.number("mscale"), mscale_all_dim = arguments.number("mscale_all_dim");
  const bool truncate = arguments.flag("truncate");
  const double low = arguments.number("low_freq_factor"), high = arguments.number("high_freq_factor");
  const double partial = arguments.number("partial_rotary_factor");
  const std::vector<double> short_factors = numbers<double>(arguments, "short_factors"),
                            long_factors = numbers<double>(arguments, "long_factors");
  const int64_t sequence_length = arguments.integer("sequence_length"), max_position = arguments.integer("max_position");
  const auto precision =
      arguments.choice<RopePrecision>("precision", {{"reference", RopePrecision::reference}, {"exact", RopePrecision::exact}});
  arguments.require_all_read();

  switch (scheme) {
    case Scheme::plain: break;
    case Scheme::linear: config.scaling = LinearRope{factor}; break;
    case Scheme::dynamic: config.scaling = DynamicNtkRope{factor, original}; break;
    case Scheme::yarn:
      config.scaling = YarnRope{factor, original, beta_fast, beta_slow, mscale, mscale_all_dim, attention_factor, truncate};
      break;
    case Scheme::longrope:
      config.scaling = LongRope{short_factors, long_factors, original, factor, attention_factor, attention_factor};
      break;
    case Scheme::llama3: config.scaling = Llama3Rope{factor, low, high, original}; break;
    case Scheme::proportional: config.scaling = ProportionalRope{partial, factor}; break;
  }
  auto frequencies = rope_frequencies(config, sequence_length, precision);
  check(frequencies.status());
  auto table = rope_cos_sin(*frequencies, max_position, precision);
  check(table.status());
  return tensor_of(*table, {max_position, config.rotary_dim}, {kDLFloat, 32, 1});
}

}  // namespace
}  // namespace prologue::python

PROLOGUE_PYTHON_FUNCTION(rope_cos_sin, prologue::python::run_rope_cos_sin)
PROLOGUE_PYTHON_FUNCTION(mrope_pair_axis, prologue::python::run_mrope_pair_axis)
