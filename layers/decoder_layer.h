// A pre-norm decoder layer over a residual stream (Llama and its kin):
//   residual += previous;  residual += attention(norm(residual));  mlp(norm(residual)) is handed on
// The addition of a block's output to the residual happens in the norm that follows it, in one pass.
#pragma once

#include <prologue/layers/attention.h>
#include <prologue/layers/graph/graph.h>
#include <prologue/layers/mlp.h>

namespace prologue {

struct PROLOGUE_API DecoderLayer {
  Weight attention_norm;
  Attention attention;
  Weight mlp_norm;
  GatedMlp mlp;
  float norm_eps = 1e-5f;

  // `previous` is the output of the layer before, not yet added to `residual`; none in the first layer. Returns this layer's.
  Value build(GraphBuilder& g, Value residual, Value previous) const;
};

}  // namespace prologue
