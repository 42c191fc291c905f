// Somebody who comes from another RoPE: the adapters of the installed header, called and linked. Answers 0 when each did its work.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>

#include <prologue/kernels/coming_from/coming_from.h>

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
  coming_from::flash_attn::ApplyRotary call = {.x = const_cast<float*>(x),
                                               .out = out,
                                               .dtype = DType::f32,
                                               .batch = 1,
                                               .seqlen = 1,
                                               .nheads = 1,
                                               .headdim = 4,
                                               .x_strides = batch_major_strides(1, 1, 4),
                                               .out_strides = batch_major_strides(1, 1, 4),
                                               .cos = cos,
                                               .sin = sin,
                                               .cos_dtype = DType::f32,
                                               .seqlen_ro = 2,
                                               .rotary_dim = 4,
                                               .seqlen_offset = 1};
  Status status = coming_from::flash_attn::apply_rotary(call, &faults, Execution{});
  const float want[4] = {-3, -4, 1, 2};  // a quarter of a turn
  expect(status.ok() && std::memcmp(out, want, sizeof want) == 0, "flash_attn", status);
  call.seqlen_offset = 2;  // past the table: not rotated, as theirs
  status = coming_from::flash_attn::apply_rotary(call, &faults, Execution{});
  expect(status.ok() && std::memcmp(out, x, sizeof out) == 0 && faults.count == 0, "flash_attn, past the table", status);
}

void ggml() {
  namespace ggml = coming_from::ggml;
  const ggml::Model model = {.n_dims = 2, .attn_factor = 2};
  const Result<ggml::Frequencies> frequencies = ggml::frequencies(model);
  if (!frequencies.ok()) return expect(false, "ggml::frequencies", frequencies.status());
  const int32_t b[3] = {-1, 0, 1};
  int64_t forward[3] = {}, backward[3] = {};
  Status status = ggml::split_signs(b, 3, 1, forward, backward);
  expect(status.ok(), "ggml::split_signs", status);
  float x[6] = {1, 0, 1, 0, 1, 0};
  FaultRecord faults;
  ggml::Rope rope = {.a = x,
                     .dst = x,
                     .ne = {2, 1, 3, 1},
                     .a_nb = {4, 8, 8, 24},
                     .dst_nb = {4, 8, 8, 24},
                     .inv_freq = frequencies->inv_freq,
                     .attention_factor = frequencies->attention_factor};
  status = ggml::rope_of_any_sign(model, rope, forward, backward, &faults, Execution{});
  expect(status.ok(), "ggml::rope_of_any_sign", status);
  for (int i = 0; i < 3; ++i) {
    expect(std::fabs(x[2 * i] - 2 * std::cos(b[i])) < 1e-6 && std::fabs(x[2 * i + 1] - 2 * std::sin(b[i])) < 1e-6,
           "ggml, in place");
  }
}

void infinicore() {
  namespace infini = coming_from::infinicore;
  infini::TensorDescriptor x = {.dtype = infini::Dtype::f32, .ndim = 3, .shape = {1, 1, 4}, .strides = {4, 4, 1}};
  const infini::TensorDescriptor pos = {.dtype = infini::Dtype::u8, .ndim = 1, .shape = {1}, .strides = {1}};
  const infini::TensorDescriptor table = {.dtype = infini::Dtype::f32, .ndim = 2, .shape = {2, 2}, .strides = {2, 1}};
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

// The attention prologue's part of the header links, too.
void vllm() {
  const Status status = coming_from::vllm::rope_and_cache({}, nullptr, Execution{});
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
