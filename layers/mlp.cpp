#include <prologue/layers/mlp.h>

namespace prologue {

Value GatedMlp::build(GraphBuilder& g, Value hidden_states) const {
  const Value both = g.linear("gate_up", hidden_states, gate_up_weight);
  const Value gated = g.gated_activation("activation", both, activation);
  return g.linear("down", gated, down_weight);
}

}  // namespace prologue
