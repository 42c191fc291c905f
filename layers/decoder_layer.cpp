#include <prologue/layers/decoder_layer.h>

namespace prologue {

Value DecoderLayer::build(GraphBuilder& g, Value residual, Value previous) const {
  Value x = previous ? g.add_rms_norm("attention_norm", previous, residual, attention_norm, norm_eps)
                     : g.rms_norm("attention_norm", residual, attention_norm, norm_eps);
  {
    const GraphBuilder::Scope scope(g, "attention");
    x = attention.build(g, x);
  }
  x = g.add_rms_norm("mlp_norm", x, residual, mlp_norm, norm_eps);
  const GraphBuilder::Scope scope(g, "mlp");
  return mlp.build(g, x);
}

}  // namespace prologue
