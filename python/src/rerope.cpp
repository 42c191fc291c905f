#include <prologue/kernels/rerope/rerope.h>

#include "groups.h"

namespace prologue::python {
namespace {

tvm::ffi::Any run_rerope(Arguments& arguments) {
  ReropeParams params;
  params.cache = read_paged_kv(arguments);
  if (params.cache.k.head_dim == 0) fail_value("cache: k is None: rerope moves keys");
  const Array slots = arguments.array("slot_mapping").require_rank(1, 1);
  params.num_keys = slots.size(0);
  params.slot_mapping = index_view_of(slots);
  params.rope = read_rope(arguments, 1, params.num_keys, params.cache.k.head_dim, RopeSources::all);
  const Array from = arguments.array("from_positions"), to = arguments.array("to_positions");
  for (const Array* positions : {&from, &to}) {
    const int last = positions->require_rank(1, 2).rank() - 1;
    positions->require_size(last, params.num_keys, "one for each key").require_contiguous(last);
    if (last == 1) positions->require_size(0, params.rope.num_axes, "the position axes");
  }
  const auto axis_stride = [](const Array& positions) { return positions.rank() == 2 ? positions.stride(0) : int64_t{0}; };
  params.position_axis_stride = axis_stride(from);
  if (params.rope.num_axes > 1 && axis_stride(to) != params.position_axis_stride) {
    fail_value("from_positions has the shape ", from.shape_text(), " and to_positions ", to.shape_text(),
               ": their shapes and strides must be equal");
  }
  params.from_positions = {from.data(), from.dtype()};
  params.to_positions = {to.data(), to.dtype()};
  params.hadamard_block = arguments.integer("hadamard_block");
  const Array faults = arguments.optional_array("faults");
  params.token_faults = token_faults_of(arguments.optional_array("token_faults"), params.num_keys);
  arguments.require_all_read();
  Call call(arguments.device(), fault_record_of(faults));
  params.faults = call.faults();
  call.finish(rerope(params, call.execution()), params.rope.past_table);
  return {};
}

}  // namespace
}  // namespace prologue::python

PROLOGUE_PYTHON_FUNCTION(rerope, prologue::python::run_rerope)
