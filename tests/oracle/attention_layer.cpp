#include "tests/oracle/attention_layer.h"

#include <algorithm>
#include <cmath>

#include "tests/oracle/gemm.h"

namespace prologue::test::oracle {
namespace {

// Holds a value, and how far a backend may be from it.
struct Bounded {
  double value = 0.0;
  double error = 0.0;
};

}  // namespace

template <class T>
std::vector<Reference> attention_layer(AttentionLayerInput<T> in, double probability_error) {
  constexpr double kUnit = 0x1p-24;
  oracle::PrologueInput& p = in.prologue;
  const int64_t d_head = p.head_dim, q_width = p.num_q_heads * d_head, kv_width = p.num_kv_heads * d_head;
  const std::vector<Reference> qkv = gemm(in.hidden_states, in.hidden_size, in.qkv_weight, std::vector<T>(), p.num_tokens,
                                          q_width + 2 * kv_width, in.hidden_size);
  for (int64_t t = 0; t < p.num_tokens; ++t) {
    const Reference* row = &qkv[static_cast<size_t>(t * (q_width + 2 * kv_width))];
    for (int64_t i = 0; i < q_width; ++i) p.q.push_back(row[i].value);
    for (int64_t i = 0; i < kv_width; ++i)
      p.k.push_back(row[q_width + i].value), p.v.push_back(row[q_width + kv_width + i].value);
  }
  const oracle::PrologueOutput heads = oracle::attention_prologue(p);
  const auto stored = [](const oracle::Element& e) {
    return Bounded{e.value, 0.5 * ulp<T>(e.value) + kDefaultSteps * kUnit * e.scale};
  };

  std::vector<Reference> out(static_cast<size_t>(p.num_tokens * in.hidden_size), Reference{std::nan(""), 0.0});
  for (size_t s = 0; s + 1 < in.cu_seqlens_q.size(); ++s) {
    const int64_t cached = in.cache_lens[s];
    for (int64_t t = in.cu_seqlens_q[s]; t < in.cu_seqlens_q[s + 1]; ++t) {
      const int64_t visible = cached + t - in.cu_seqlens_q[s] + 1;
      std::vector<Bounded> attention;
      for (int64_t h = 0; h < p.num_q_heads; ++h) {
        const int64_t kv_head = h / (p.num_q_heads / p.num_kv_heads);
        const auto at = [&](const std::vector<std::vector<T>>& before, const std::vector<oracle::Row>& now,
                            int64_t position, int64_t d) {
          const auto i = static_cast<size_t>(kv_head * d_head + d);
          if (position < cached)
            return Bounded{static_cast<double>(to_float(before[s][static_cast<size_t>(position * kv_width) + i])), 0.0};
          return stored(now[static_cast<size_t>(in.cu_seqlens_q[s] + position - cached)][i]);
        };
        std::vector<double> weight, weight_error;
        for (int64_t position = 0; position < visible; ++position) {
          double dot = 0.0, terms = 0.0, error = 0.0;
          for (int64_t d = 0; d < d_head; ++d) {
            const Bounded q = stored(heads.q[static_cast<size_t>(t)][static_cast<size_t>(h * d_head + d)]);
            const Bounded k = at(in.cached_k, heads.k, position, d);
            dot += q.value * k.value;
            terms += std::fabs(q.value * k.value);
            error += q.error * std::fabs(k.value) + std::fabs(q.value) * k.error + q.error * k.error;
          }
          weight.push_back(in.scale * dot);
          weight_error.push_back(1.1 * in.scale * error + 18 * kUnit * (1.0 + in.scale * terms) + probability_error);
        }
        const double maximum = *std::max_element(weight.begin(), weight.end());
        double total = 0.0;
        for (double& w : weight) total += w = std::exp(w - maximum);
        for (int64_t d = 0; d < d_head; ++d) {
          Bounded sum;
          double terms = 0.0;
          for (int64_t i = 0; i < visible; ++i) {
            const double term = weight[static_cast<size_t>(i)] / total * at(in.cached_v, heads.v, i, d).value;
            sum.value += term;
            terms += std::fabs(term);
          }
          for (int64_t i = 0; i < visible; ++i) {
            const Bounded v = at(in.cached_v, heads.v, i, d);
            const double reach = std::fabs(v.value) + std::fabs(sum.value);
            sum.error += 1.1 * weight[static_cast<size_t>(i)] / total * (weight_error[static_cast<size_t>(i)] * reach + v.error);
          }
          sum.error += kDefaultSteps * kUnit * terms + 0.5 * ulp<T>(sum.value);
          attention.push_back(sum);
        }
      }
      for (int64_t n = 0; n < in.hidden_size; ++n) {
        Reference& y = out[static_cast<size_t>(t * in.hidden_size + n)];
        y = {};
        const auto add = [&](double term, double error) {
          y.value += term;
          y.scale += std::fabs(term) + error / (kDefaultSteps * kUnit);
        };
        for (int64_t i = 0; i < q_width; ++i) {
          const double w = static_cast<double>(to_float(in.output_weight[static_cast<size_t>(n * q_width + i)]));
          add(w * attention[static_cast<size_t>(i)].value, std::fabs(w) * attention[static_cast<size_t>(i)].error);
        }
        if (!in.output_bias.empty()) add(static_cast<double>(to_float(in.output_bias[static_cast<size_t>(n)])), 0.0);
      }
    }
  }
  return out;
}

template std::vector<Reference> attention_layer(AttentionLayerInput<float>, double);
template std::vector<Reference> attention_layer(AttentionLayerInput<Float16>, double);
template std::vector<Reference> attention_layer(AttentionLayerInput<BFloat16>, double);

}  // namespace prologue::test::oracle
