#include <prologue/layers/mlp.h>

namespace prologue {

Value Mlp::build(GraphBuilder& g, Value hidden_states) const {
  const Value up = g.linear(gated ? "gate_up" : "up", hidden_states, up_weight, up_bias);
  const Value activated = g.activation("activation", up, {activation, gated, limit, alpha});
  return g.linear("down", activated, down_weight, down_bias);
}

}  // namespace prologue
