#include <prologue/kernels/token_ops/gather_cos_sin.h>

#include "groups.h"

namespace prologue::python {
namespace {

tvm::ffi::Any run_gather_cos_sin(Arguments& arguments) {
  GatherCosSinParams params;
  const Array cos_sin = arguments.array("cos_sin"), positions = arguments.array("positions");
  const Array pair_axis = arguments.optional_array("pair_axis");
  params.past_table = arguments.choice<PastTable>(
      "past_table", {{"record", PastTable::record}, {"zero", PastTable::zero}, {"identity", PastTable::identity}});

  cos_sin.require_rank(2, 2).require_dense();
  const Array out = arguments.array("out");
  params.max_position = cos_sin.size(0);
  params.rotary_dim = cos_sin.size(1);
  params.cos_sin = cos_sin.data();
  params.type = cos_sin.dtype();
  positions.require_rank(1, 2).require_contiguous(positions.rank() - 1);
  params.num_tokens = positions.size(positions.rank() - 1);
  params.positions = {positions.data(), positions.dtype()};
  if (positions.rank() == 2) {
    params.num_axes = positions.size(0);
    params.position_axis_stride = positions.stride(0);
  }
  if (pair_axis) {
    pair_axis.require_rank(1, 1).require_size(0, params.rotary_dim / 2, "one for each pair").require_dense();
    params.pair_axis = pair_axis.as<uint8_t>(DType::uint8);
  }
  out.require_rank(2, 2).require_size(0, params.num_tokens, "one row for each token");
  out.require_size(1, params.rotary_dim, "as cos_sin").require_dense();
  params.out = out.as<float>(DType::f32);
  arguments.require_all_read();
  const Call call(arguments.device(), nullptr);
  call.finish(gather_cos_sin(params, call.execution()));
  return {};
}

}  // namespace
}  // namespace prologue::python

PROLOGUE_PYTHON_FUNCTION(gather_cos_sin, prologue::python::run_gather_cos_sin)
