// A decoder layer has attention and an MLP over a residual, with the norms that the model has.
//   sequential          residual += attention(norm(residual));  residual += mlp(mlp_norm(residual))
//   parallel            h = norm(residual);  residual += attention(h) + mlp(h)
//   parallel_two_norms  residual += attention(norm(residual)) + mlp(mlp_norm(residual))
// A post norm is applied to the output of attention or MLP before it is added. A block's output is added to the residual by the norm that
// follows it, in one pass.
#pragma once

#include <optional>

#include <prologue/layers/attention.h>
#include <prologue/layers/graph/graph.h>
#include <prologue/layers/mlp.h>
#include <prologue/layers/moe.h>

namespace prologue {

enum class BlockShape : int32_t { sequential = 0, parallel, parallel_two_norms };

struct PROLOGUE_API DecoderLayer {
  BlockShape shape = BlockShape::sequential;
  std::optional<Norm> attention_norm;  // none: attention reads the residual itself (OLMo 2)
  Attention attention;
  std::optional<Norm> attention_post_norm;
  std::optional<Norm> mlp_norm;
  Mlp mlp;
  std::optional<MixtureOfExperts> experts;  // instead of the MLP
  std::optional<Norm> mlp_post_norm;
  // The weights are those of one rank (kernels/collective): what attention and MLP return is a part of a sum over the ranks. Norms are whole,
  // and a bias on a part of a sum is given to one rank.
  bool is_part = false;

  // `residual` is the sum so far, and `previous` the output of the previous layer, not yet added to it; none in the first layer. Returns
  // the output of this layer, also not yet added; `residual` becomes the value that it is to be added to.
  Value build(GraphBuilder& g, Value& residual, Value previous) const;
};

}  // namespace prologue
