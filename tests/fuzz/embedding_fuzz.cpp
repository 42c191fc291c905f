// Calls kernels/token_ops/embedding.h with any struct.
#include <prologue/kernels/token_ops/embedding.h>

#include <prologue/kernels/base/host/packed_weight.h>

#include "tests/fuzz/operation.h"

using namespace prologue;
using namespace prologue::fuzz;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Tally tally("embedding");
  Choices choices(data, size);
  MemoryMap map(choices);
  EmbeddingParams p;
  p.num_tokens = choices.size(0, 6);
  p.num_rows = choices.size(1, 9);
  p.width = choices.size(1, 40);
  p.dtype = activation_type(choices);
  p.scale = choices.real(choices.chance(2) ? 1.0f : 1.5f);
  p.indices.type = index_type(choices);
  const int64_t element = dtype_size(p.dtype);
  if (choices.chance(3)) {
    p.table_format = choices.enumerator(kLastWeightFormat);
    if (!choices.hostile()) p.width = weight_block_elements(p.table_format) * choices.integer(1, 3);
  }
  if (p.table_format == WeightFormat::dense) {
    map.array("table", p.table, dense(times(p.num_rows, p.width), element), Use::read, float_type_of(p.dtype));
  } else {
    const int64_t groups = p.num_rows <= 0 ? 0 : (p.num_rows - 1) / kPackedGroupRows + 1;
    const int64_t row_bytes = times(p.width / weight_block_elements(p.table_format), weight_block_bytes(p.table_format));
    map.array("table", p.table, dense(times(times(groups, kPackedGroupRows), row_bytes), 1), Use::read, DType::f16);
  }
  map.array("indices", p.indices.data, dense(p.num_tokens, index_size(p.indices)), Use::read);
  map.array("out", p.out, dense(times(p.num_tokens, p.width), element), Use::write);
  if (choices.chance(2)) map.optional("faults", p.faults, dense(1, sizeof(FaultRecord)), Use::write);
  if (choices.chance(2)) map.optional("token_faults", p.token_faults, dense(p.num_tokens, 1), Use::write);
  if (!map.allocate()) return 0;
  fill_indices(choices, p.indices, p.num_tokens, -1, p.num_rows);

  map.freeze();
  if (p.num_tokens == 0) map.forgive();
  map.permit(p.out, 0, times(times(p.num_tokens, p.width), element));
  map.permit(p.faults, 0, sizeof(FaultRecord));
  map.permit(p.token_faults, 0, p.num_tokens);
  const Status status = embedding(p, execution(choices));
  map.check(status);
  tally.count(status.ok());
  return 0;
}
