#include <prologue/layers/moe.h>

namespace prologue {

Value MixtureOfExperts::build(GraphBuilder& g, Value hidden_states) const {
  const Value logits = g.linear("router", hidden_states, router_weight, router_bias, DType::f32);
  const auto [ids, weights] = g.moe_route("route", logits, top_k, weighting, normalize);
  const Value scale = weights_before ? weights : Value();
  const Value up = g.moe_linear(experts.gated ? "experts.gate_up" : "experts.up", hidden_states, ids, num_experts,
                                experts.up_weight, experts.up_bias, scale);
  const Value activated =
      g.activation("experts.activation", up, {experts.activation, experts.gated, experts.limit, experts.alpha, top_k});
  const Value down = g.moe_linear("experts.down", activated, ids, num_experts, experts.down_weight, experts.down_bias);
  Value of_all_tokens;
  if (shared.up_weight) {
    const GraphBuilder::Scope scope(g, "shared");
    of_all_tokens = shared.build(g, hidden_states);
  }
  return g.moe_combine("combine", down, top_k, weights_before ? Value() : weights, of_all_tokens);
}

}  // namespace prologue
