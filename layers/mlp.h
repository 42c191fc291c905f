// The gated MLP of a decoder layer.
#pragma once

#include <prologue/layers/graph/graph.h>

namespace prologue {

struct PROLOGUE_API GatedMlp {
  Activation activation = Activation::silu;
  Weight gate_up_weight;  // [2 * intermediate, hidden]: the rows of gate, then the rows of up
  Weight down_weight;     // [hidden, intermediate]

  Value build(GraphBuilder& g, Value hidden_states) const;
};

}  // namespace prologue
