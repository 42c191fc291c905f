#include <prologue/layers/decoder_layer.h>

namespace prologue {

Value DecoderLayer::build(GraphBuilder& g, Value residual, Value previous) const {
  const Norm before_attention = {NormKind::rms, attention_norm, {}, norm_eps};
  Value x = previous ? g.add_norm("attention_norm", previous, residual, before_attention)
                     : g.norm("attention_norm", residual, before_attention);
  {
    const GraphBuilder::Scope scope(g, "attention");
    x = attention.build(g, x);
  }
  x = g.add_norm("mlp_norm", x, residual, {NormKind::rms, mlp_norm, {}, norm_eps});
  const GraphBuilder::Scope scope(g, "mlp");
  return mlp.build(g, x);
}

}  // namespace prologue
