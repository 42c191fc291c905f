// Somebody who comes from another RoPE: the installed adapters, called and linked. Answers 0 when each did its work.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <initializer_list>

#include <prologue/adapters/flash_attn.h>
#include <prologue/adapters/ggml.h>
#include <prologue/adapters/infinicore.h>
#include <prologue/adapters/vllm.h>

using namespace prologue;

namespace {

int failures = 0;

void expect(bool ok, const char* what, const Status& status = {}) {
  if (ok) return;
  std::fprintf(stderr, "%s: %s\n", what, status.message().c_str());
  ++failures;
}

void flash_attention() {
  const float x[4] = {1, 2, 3, 4}, cos[4] = {1, 1, 0, 0}, sin[4] = {0, 0, 1, 1};
  float out[4] = {};
  FaultRecord faults;
  adapters::flash_attn::ApplyRotary call;
  call.x = const_cast<float*>(x);
  call.out = out;
  call.dtype = DType::f32;
  call.batch = 1;
  call.seqlen = 1;
  call.nheads = 1;
  call.headdim = 4;
  call.x_strides = batch_major_strides(1, 1, 4);
  call.out_strides = batch_major_strides(1, 1, 4);
  call.cos = cos;
  call.sin = sin;
  call.cos_dtype = DType::f32;
  call.seqlen_ro = 2;
  call.rotary_dim = 4;
  call.seqlen_offset = 1;
  Status status = adapters::flash_attn::apply_rotary(call, &faults, Execution{});
  const float want[4] = {-3, -4, 1, 2};  // a quarter of a turn
  expect(status.ok() && std::memcmp(out, want, sizeof want) == 0, "flash_attn", status);
  call.seqlen_offset = 2;  // past the table: not rotated, as theirs
  status = adapters::flash_attn::apply_rotary(call, &faults, Execution{});
  expect(status.ok() && std::memcmp(out, x, sizeof out) == 0 && faults.count == 0, "flash_attn, past the table", status);
}

void ggml() {
  namespace ggml = adapters::ggml;
  ggml::Model model;
  model.n_dims = 2;
  model.attn_factor = 2;
  const Result<ggml::Frequencies> frequencies = ggml::frequencies(model);
  if (!frequencies.ok()) return expect(false, "ggml::frequencies", frequencies.status());
  const int32_t b[3] = {-1, 0, 1};
  int64_t forward[3] = {}, backward[3] = {};
  Status status = ggml::split_signs(b, 3, 1, forward, backward);
  expect(status.ok(), "ggml::split_signs", status);
  float x[6] = {1, 0, 1, 0, 1, 0};
  FaultRecord faults;
  ggml::Rope rope;
  rope.a = rope.dst = x;
  const int64_t ne[4] = {2, 1, 3, 1};
  const size_t nb[4] = {4, 8, 8, 24};
  std::copy_n(ne, 4, rope.ne);
  std::copy_n(nb, 4, rope.a_nb);
  std::copy_n(nb, 4, rope.dst_nb);
  rope.inv_freq = frequencies->inv_freq;
  rope.attention_factor = frequencies->attention_factor;
  status = ggml::rope_of_any_sign(model, rope, index_view(forward), index_view(backward), &faults, Execution{});
  expect(status.ok(), "ggml::rope_of_any_sign", status);
  for (int i = 0; i < 3; ++i) {
    expect(std::fabs(x[2 * i] - 2 * std::cos(b[i])) < 1e-6 && std::fabs(x[2 * i + 1] - 2 * std::sin(b[i])) < 1e-6,
           "ggml, in place");
  }
}

namespace infini = adapters::infinicore;

infini::TensorDescriptor descriptor(infini::Dtype dtype, std::initializer_list<int64_t> shape,
                                    std::initializer_list<int64_t> strides) {
  infini::TensorDescriptor tensor;
  tensor.dtype = dtype;
  tensor.ndim = static_cast<int64_t>(shape.size());
  std::copy(shape.begin(), shape.end(), tensor.shape);
  std::copy(strides.begin(), strides.end(), tensor.strides);
  return tensor;
}

void infinicore() {
  infini::TensorDescriptor x = descriptor(infini::Dtype::f32, {1, 1, 4}, {4, 4, 1});
  const infini::TensorDescriptor pos = descriptor(infini::Dtype::u8, {1}, {1});
  const infini::TensorDescriptor table = descriptor(infini::Dtype::f32, {2, 2}, {2, 1});
  infini::RopeDescriptor desc;
  infini::Code code = infini::Code::success;
  Status status = infini::create_rope_descriptor(&desc, &x, &x, &pos, &table, &table, infini::Algo::gpt_j, Execution{}, &code);
  expect(status.ok() && code == infini::Code::success, "infinicore", status);
  const float values[4] = {1, 2, 3, 4}, sin[4] = {0, 0, 1, 1}, cos[4] = {1, 1, 0, 0}, want[4] = {-2, 1, -4, 3};
  const uint8_t position = 1;
  float y[4] = {};
  FaultRecord faults;
  status = infini::rope(desc, y, values, &position, sin, cos, &faults, Execution{});
  expect(status.ok() && std::memcmp(y, want, sizeof want) == 0, "infinicore::rope", status);
  x.shape[2] = 6;
  status = infini::create_rope_descriptor(&desc, &x, &x, &pos, &table, &table, infini::Algo::gpt_j, Execution{}, &code);
  expect(!status.ok() && code == infini::Code::bad_tensor_shape, "infinicore, a wrong head", status);
}

// An adapter to the attention prologue links, too.
void vllm() {
  const Status status = adapters::vllm::rope_and_cache({}, nullptr, Execution{});
  expect(status.code() == StatusCode::invalid_argument, "vllm", status);
}

}  // namespace

int main() {
  flash_attention();
  ggml();
  infinicore();
  vllm();
  return failures == 0 ? 0 : 1;
}
