#include <algorithm>
#include <cstring>

#include <prologue/layers/step.h>

namespace prologue {

void StepBatch::clear() { *this = StepBatch(static_cast<int64_t>(positions_.size())); }

void StepBatch::add_sequence(const int32_t* tokens, int64_t num_tokens, int64_t first_position,
                             const std::vector<int32_t>& block_table, int64_t page_size, int64_t num_logit_rows) {
  for (int64_t i = 0; i < num_tokens; ++i) {
    const int64_t position = first_position + i;
    const int64_t page = block_table[static_cast<size_t>(position / page_size)];
    token_ids_.push_back(tokens[i]);
    for (auto& stream : positions_) stream.push_back(static_cast<int32_t>(position));
    slot_mapping_.push_back(page * page_size + position % page_size);
    if (i >= num_tokens - num_logit_rows) logit_rows_.push_back(static_cast<int32_t>(token_ids_.size()) - 1);
  }
  cu_seqlens_q_.push_back(static_cast<int32_t>(token_ids_.size()));
  seq_lens_.push_back(static_cast<int32_t>(first_position + num_tokens));
  block_tables_.push_back(block_table);
  max_seqlen_q_ = std::max(max_seqlen_q_, num_tokens);
  max_seq_len_ = std::max(max_seq_len_, first_position + num_tokens);
}

namespace {

// Arrays one after the other in a staging buffer, each at a multiple of 16 bytes.
class Packer {
 public:
  explicit Packer(void* bytes) : bytes_(static_cast<unsigned char*>(bytes)) {}

  template <class T>
  int64_t add(const std::vector<T>& values) {
    const int64_t at = end_;
    const int64_t size = static_cast<int64_t>(values.size() * sizeof(T));
    if (size > 0) std::memcpy(bytes_ + at, values.data(), static_cast<size_t>(size));
    end_ = (at + size + 15) / 16 * 16;
    return at;
  }
  int64_t end() const { return end_; }

 private:
  unsigned char* bytes_;
  int64_t end_ = 0;
};

}  // namespace

Result<StepBuffers> StepBuffers::create(int64_t max_tokens, int64_t max_seqs, int64_t max_pages_per_seq, Device device,
                                        int64_t num_position_axes) {
  StepBuffers buffers;
  buffers.max_tokens_ = max_tokens;
  buffers.max_seqs_ = max_seqs;
  buffers.max_pages_per_seq_ = max_pages_per_seq;
  buffers.num_position_axes_ = num_position_axes;
  const int64_t per_token = (2 + num_position_axes) * 4 + 8;  // ids, logit rows, positions; slots
  const int64_t num_bytes = max_tokens * per_token + (2 * max_seqs + 1) * 4 + max_seqs * max_pages_per_seq * 4 + 7 * 16;
  PROLOGUE_ASSIGN_OR_RETURN(buffers.staging_, StagingBuffer::allocate(device, num_bytes));
  PROLOGUE_ASSIGN_OR_RETURN(buffers.device_, Buffer::allocate(device, num_bytes));
  return buffers;
}

Result<StepInputs> StepBuffers::upload(const StepBatch& batch, const Execution& execution) {
  if (batch.num_tokens() > max_tokens_ || batch.num_seqs() > max_seqs_) {
    return invalid_argument("the step has ", batch.num_tokens(), " tokens of ", batch.num_seqs(), " sequences: its buffers hold ",
                            max_tokens_, " tokens of ", max_seqs_, " sequences");
  }
  const auto num_axes = static_cast<int64_t>(batch.positions_.size());
  if (num_axes > num_position_axes_) {
    return invalid_argument("the step has positions in ", num_axes, " streams: its buffers hold ", num_position_axes_);
  }
  std::vector<int32_t> all_positions;
  for (const auto& stream : batch.positions_) all_positions.insert(all_positions.end(), stream.begin(), stream.end());
  int64_t table_width = 1;
  for (const auto& table : batch.block_tables_) table_width = std::max(table_width, static_cast<int64_t>(table.size()));
  if (table_width > max_pages_per_seq_) {
    return invalid_argument("a sequence of the step has ", table_width, " pages: its buffers hold ", max_pages_per_seq_,
                            " a sequence");
  }
  std::vector<int32_t> tables(static_cast<size_t>(batch.num_seqs() * table_width), -1);
  for (size_t s = 0; s < batch.block_tables_.size(); ++s) {
    std::copy(batch.block_tables_[s].begin(), batch.block_tables_[s].end(),
              tables.begin() + static_cast<int64_t>(s) * table_width);
  }

  PROLOGUE_ASSIGN_OR_RETURN(void* const staging, staging_.fill());
  Packer packer(staging);
  const int64_t slots = packer.add(batch.slot_mapping_);
  const int64_t ids = packer.add(batch.token_ids_);
  const int64_t positions = packer.add(all_positions);
  const int64_t offsets = packer.add(batch.cu_seqlens_q_);
  const int64_t lens = packer.add(batch.seq_lens_);
  const int64_t rows = packer.add(batch.logit_rows_);
  const int64_t table = packer.add(tables);
  PROLOGUE_RETURN_IF_ERROR(staging_.copy_to_device(device_.data(), packer.end(), execution));

  const auto* base = device_.as<unsigned char>();
  StepInputs step;
  step.num_tokens = batch.num_tokens();
  step.num_seqs = batch.num_seqs();
  step.num_logit_rows = batch.num_logit_rows();
  step.max_seqlen_q = batch.max_seqlen_q_;
  step.max_seq_len = batch.max_seq_len_;
  step.token_ids = reinterpret_cast<const int32_t*>(base + ids);
  step.positions = reinterpret_cast<const int32_t*>(base + positions);
  step.num_position_axes = num_axes;
  step.position_axis_stride = step.num_tokens;
  step.slot_mapping = reinterpret_cast<const int64_t*>(base + slots);
  step.cu_seqlens_q = reinterpret_cast<const int32_t*>(base + offsets);
  step.seq_lens = reinterpret_cast<const int32_t*>(base + lens);
  step.block_table = reinterpret_cast<const int32_t*>(base + table);
  step.block_table_stride = table_width;
  step.logit_rows = reinterpret_cast<const int32_t*>(base + rows);
  return step;
}

}  // namespace prologue
