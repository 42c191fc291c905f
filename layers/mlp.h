// This is the MLP of a decoder layer: up, activation, down.
#pragma once

#include <prologue/layers/graph/graph.h>

namespace prologue {

struct PROLOGUE_API Mlp {
  Activation activation = Activation::silu;
  bool gated = true;
  Weight up_weight;       // [intermediate, hidden]; gated: [2 * intermediate, hidden], the rows of gate, then those of up
  Weight up_bias = {};    // an element for each row of up_weight; may be none
  Weight down_weight;     // [hidden, intermediate]
  Weight down_bias = {};  // [hidden]; may be none
  float limit = 7.0f, alpha = 1.702f;  // Activation::clamped_swiglu only

  Value build(GraphBuilder& g, Value hidden_states) const;
};

}  // namespace prologue
