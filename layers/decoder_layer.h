// A pre-norm decoder layer with a residual (Llama and models with the same architecture):
//   residual += previous;  residual += attention(norm(residual));  returns mlp(norm(residual))
// The output of a block is added to the residual by the norm that follows it, in one pass.
#pragma once

#include <prologue/layers/attention.h>
#include <prologue/layers/graph/graph.h>
#include <prologue/layers/mlp.h>

namespace prologue {

struct PROLOGUE_API DecoderLayer {
  Weight attention_norm;
  Attention attention;
  Weight mlp_norm;
  Mlp mlp;
  float norm_eps = 1e-5f;

  // `previous` is the output of the previous layer, not yet added to `residual`; none in the first layer. Returns the output of this
  // layer, also not yet added.
  Value build(GraphBuilder& g, Value residual, Value previous) const;
};

}  // namespace prologue
