#include <prologue/layers/decoder_layer.h>

namespace prologue {

namespace {

// Adds `previous`, if there is one, to the residual, and returns its norm.
Value next_input(GraphBuilder& g, const char* name, Value& residual, Value previous, const std::optional<Norm>& norm) {
  if (norm) return previous ? g.add_norm(name, previous, residual, *norm) : g.norm(name, residual, *norm);
  if (previous) residual = g.add(std::string(name) + "_residual", previous, residual);
  return residual;
}

}  // namespace

Value DecoderLayer::build(GraphBuilder& g, Value& residual, Value previous) const {
  // Without post norms, the sum of attention and MLP is a part of a sum, too.
  const bool sums_once = is_part && shape != BlockShape::sequential && !attention_post_norm && !mlp_post_norm;
  const auto run_attention = [&](Value x) {
    {
      const GraphBuilder::Scope scope(g, "attention");
      x = attention.build(g, x);
    }
    if (is_part && !sums_once) x = g.all_reduce("attention_sum", x);
    return attention_post_norm ? g.norm("attention_post_norm", x, *attention_post_norm) : x;
  };
  const auto run_mlp = [&](Value x) {
    {
      const GraphBuilder::Scope scope(g, "mlp");
      x = experts ? experts->build(g, x) : mlp.build(g, x);
    }
    if (is_part && !sums_once) x = g.all_reduce("mlp_sum", x);
    return mlp_post_norm ? g.norm("mlp_post_norm", x, *mlp_post_norm) : x;
  };
  const Value x = next_input(g, "attention_norm", residual, previous, attention_norm);
  const Value attended = run_attention(x);
  if (shape == BlockShape::sequential) return run_mlp(next_input(g, "mlp_norm", residual, attended, mlp_norm));
  const Value mlp_input = shape == BlockShape::parallel_two_norms && mlp_norm ? g.norm("mlp_norm", residual, *mlp_norm) : x;
  const Value sum = g.add("sum", attended, run_mlp(mlp_input));
  return sums_once ? g.all_reduce("sum_of_ranks", sum) : sum;
}

}  // namespace prologue
