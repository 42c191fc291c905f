#include <type_traits>

#include <prologue/kernels/base/host/convert_cpu.h>
#include <prologue/kernels/base/host/head_cpu.h>
#include <prologue/kernels/base/host/parallel.h>
#include <prologue/kernels/rotary/backends.h>
#include <prologue/kernels/rotary/rotary_token.h>

namespace prologue::cpu {

namespace {

// Elements of T are computed in this type.
template <class T>
using Arithmetic = std::conditional_t<std::is_same_v<T, double>, double, float>;

double to_arithmetic(double x) { return x; }
template <class T>
float to_arithmetic(T x) {
  return to_float(x);
}
template <class T>
T from_arithmetic(Arithmetic<T> x) {
  if constexpr (std::is_same_v<T, double>) {
    return x;
  } else {
    return from_float<T>(x);
  }
}

template <class T>
void load(const T* x, int64_t stride, int64_t count, Arithmetic<T>* values) {
  if constexpr (!std::is_same_v<T, double>) {
    if (stride == 1) return widen(x, count, values);
  }
  for (int64_t i = 0; i < count; ++i) values[i] = to_arithmetic(x[i * stride]);
}

template <class T>
void store(const Arithmetic<T>* values, int64_t count, int64_t stride, T* y) {
  if constexpr (!std::is_same_v<T, double>) {
    if (stride == 1) return narrow(values, count, y);
  }
  for (int64_t i = 0; i < count; ++i) y[i * stride] = from_arithmetic<T>(values[i]);
}

template <class T>
class TokenRotation {
 public:
  using A = Arithmetic<T>;

  TokenRotation(const RotaryParams& params, const RotaryFrequencies& frequencies, const RotaryToken& token)
      : p_(params), token_(token) {
    for (int64_t i = 0; !token.zero && token.rotated && i < p_.rope.rotary_dim / 2; ++i) {
      const PairRotation<A> by = rotation_of_pair<A>(p_.rope, &frequencies, token, static_cast<int32_t>(i));
      cos_a_[i] = by.cos_a, sin_a_[i] = by.sin_a, cos_b_[i] = by.cos_b, sin_b_[i] = by.sin_b;
    }
  }

  void operator()(const RotaryTensor& tensor) const {
    const RotaryStrides& xs = tensor.x_strides;
    const RotaryStrides& ys = tensor.y_strides;
    const T* x = static_cast<const T*>(tensor.x) + token_.batch * xs.batch + token_.token * xs.token;
    T* y = static_cast<T*>(tensor.y) + token_.batch * ys.batch + token_.token * ys.token;
    for (int64_t h = 0; h < tensor.num_heads; ++h) head(tensor, x + h * xs.head, y + h * ys.head);
  }

 private:
  void head(const RotaryTensor& tensor, const T* x, T* y) const {
    const int64_t xs = tensor.x_strides.channel, ys = tensor.y_strides.channel;
    const bool zero = token_.zero;
    const auto fill = [&](int64_t begin, int64_t end, bool zeros) {
      if (!zeros && x == y) return;
      for (int64_t d = begin; d < end; ++d) y[d * ys] = zeros ? T{} : x[d * xs];
    };
    if (!tensor.rotate) return fill(0, p_.head_dim, zero);
    const int64_t begin = p_.rope.rotary_offset, end = begin + p_.rope.rotary_dim;
    if (p_.tail != RotaryTail::leave) {
      fill(0, begin, zero || p_.tail == RotaryTail::zero);
      fill(end, p_.head_dim, zero || p_.tail == RotaryTail::zero);
    }
    if (zero || !token_.rotated) return fill(begin, end, zero);

    alignas(64) A values[2 * kMaxRotaryPairs];
    load(x + begin * xs, xs, p_.rope.rotary_dim, values);
    const int64_t block_pairs = p_.rope.rotary_dim / (2 * p_.rope.num_blocks);
    const int64_t apart = p_.rope.style == RopeStyle::neox ? block_pairs : 1, step = p_.rope.style == RopeStyle::neox ? 1 : 2;
    for (int64_t first = 0; first < p_.rope.rotary_dim / 2; first += block_pairs) {
      A* block = values + 2 * first;
      for (int64_t i = 0; i < block_pairs; ++i) {
        const int64_t n = first + i;
        rotate_pair<A>(block[step * i], block[step * i + apart], {cos_a_[n], sin_a_[n], cos_b_[n], sin_b_[n]});
      }
    }
    store(values, p_.rope.rotary_dim, ys, y + begin * ys);
  }

  const RotaryParams& p_;
  const RotaryToken& token_;
  alignas(64) A cos_a_[kMaxRotaryPairs];
  alignas(64) A sin_a_[kMaxRotaryPairs];
  alignas(64) A cos_b_[kMaxRotaryPairs];
  alignas(64) A sin_b_[kMaxRotaryPairs];
};

template <class T>
void rotate_tokens(const RotaryParams& p, const RotaryFrequencies& frequencies, int num_threads) {
  const int64_t num_tokens = p.batch * p.seq_len;
  int64_t num_heads = 0;
  for (int64_t i = 0; i < p.num_tensors; ++i) num_heads += p.tensors[i].num_heads;
  const int threads = threads_for(num_tokens * num_heads * p.head_dim, num_threads);
  parallel_for(num_tokens, threads, [&](int64_t t) {
    const RotaryToken token = resolve_token(p, t / p.seq_len, t % p.seq_len);
    if (token.padding) return;
    if (token.fault != FaultCode::none) record_fault(p.faults, p.token_faults, t, token.fault);
    const TokenRotation<T> rotate(p, frequencies, token);
    for (int64_t i = 0; i < p.num_tensors; ++i) rotate(p.tensors[i]);
  });
}

}  // namespace

Status rotary(const RotaryParams& p, const RotaryFrequencies& frequencies, const Execution& execution) {
  switch (p.dtype) {
    case DType::f32: rotate_tokens<float>(p, frequencies, execution.num_threads); break;
    case DType::f16: rotate_tokens<Float16>(p, frequencies, execution.num_threads); break;
    case DType::bf16: rotate_tokens<BFloat16>(p, frequencies, execution.num_threads); break;
    default: rotate_tokens<double>(p, frequencies, execution.num_threads); break;
  }
  return {};
}

}  // namespace prologue::cpu
