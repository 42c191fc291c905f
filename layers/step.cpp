#include <algorithm>
#include <cstddef>
#include <cstdint>

#include <prologue/kernels/base/host/out_of_memory.h>
#include <prologue/layers/step.h>

namespace prologue {

namespace {

constexpr int64_t kMaxPositionAxes = 4;

// In the order of StepArray and StepCount.
constexpr StepMember kArrays[] = {
    {"token_ids", offsetof(StepInputs, token_ids), DType::int32},
    {"positions", offsetof(StepInputs, positions), DType::int32},
    {"slot_mapping", offsetof(StepInputs, slot_mapping), DType::int64},
    {"cu_seqlens_q", offsetof(StepInputs, cu_seqlens_q), DType::int32},
    {"seq_lens", offsetof(StepInputs, seq_lens), DType::int32},
    {"block_table", offsetof(StepInputs, block_table), DType::int32},
    {"logit_rows", offsetof(StepInputs, logit_rows), DType::int32},
};
constexpr StepMember kCounts[] = {
    {"num_tokens", offsetof(StepInputs, num_tokens), DType::unset},
    {"num_seqs", offsetof(StepInputs, num_seqs), DType::unset},
    {"num_logit_rows", offsetof(StepInputs, num_logit_rows), DType::unset},
    {"max_seqlen_q", offsetof(StepInputs, max_seqlen_q), DType::unset},
    {"max_seq_len", offsetof(StepInputs, max_seq_len), DType::unset},
    {"block_table_stride", offsetof(StepInputs, block_table_stride), DType::unset},
    {"position_axis_stride", offsetof(StepInputs, position_axis_stride), DType::unset},
};

}  // namespace

StepMember step_member(StepArray array) { return kArrays[static_cast<size_t>(array)]; }
StepMember step_member(StepCount count) { return kCounts[static_cast<size_t>(count)]; }

StepBatch::StepBatch(int64_t num_position_axes) {
  status_ = catch_out_of_memory([&]() -> Status {
    if (num_position_axes < 1 || num_position_axes > kMaxPositionAxes) {
      return invalid_argument("num_position_axes is ", num_position_axes, ": it must be between 1 and ", kMaxPositionAxes);
    }
    positions_.resize(static_cast<size_t>(num_position_axes));
    return {};
  });
}

void StepBatch::clear() {
  if (!positions_.empty()) status_ = {};  // without axes the constructor failed
  token_ids_.clear();
  for (auto& axis : positions_) axis.clear();
  slot_mapping_.clear();
  ends_.clear();
  seq_lens_.clear();
  block_tables_.clear();
  logit_rows_.clear();
  max_seqlen_q_ = 0;
  max_seq_len_ = 0;
}

Status StepBatch::check_sequence(const int32_t* tokens, int64_t num_tokens, int64_t first_position,
                                 const std::vector<int32_t>& block_table, int64_t page_size, int64_t num_logit_rows) const {
  if (num_tokens < 0 || num_tokens > INT32_MAX - this->num_tokens()) {
    return invalid_argument("step: num_tokens of a sequence is ", num_tokens, ": it must be between 0 and ",
                            INT32_MAX - this->num_tokens());
  }
  if (tokens == nullptr && num_tokens > 0) return invalid_argument("step: tokens is null");
  if (first_position < 0 || first_position > INT32_MAX - num_tokens) {
    return invalid_argument("step: first_position of a sequence is ", first_position, ": it must be between 0 and ",
                            INT32_MAX - num_tokens);
  }
  if (num_logit_rows < 0 || num_logit_rows > num_tokens) {
    return invalid_argument("step: num_logit_rows of a sequence is ", num_logit_rows, ": it must be between 0 and its ",
                            num_tokens, " tokens");
  }
  if (page_size < 1 || page_size > INT32_MAX) {
    return invalid_argument("step: page_size is ", page_size, ": it must be between 1 and ", INT32_MAX);
  }
  const int64_t num_pages = (first_position + num_tokens + page_size - 1) / page_size;
  if (num_pages > static_cast<int64_t>(block_table.size())) {
    return invalid_argument("step: the block table of a sequence has ", block_table.size(), " pages of ", page_size,
                            " tokens: its ", first_position + num_tokens, " tokens need ", num_pages);
  }
  for (int64_t i = 0; i < num_pages; ++i) {
    if (const int32_t page = block_table[static_cast<size_t>(i)]; page < 0) {
      return invalid_argument("step: entry ", i, " of a block table is page ", page, ": pages are not negative");
    }
  }
  return {};
}

void StepBatch::add_sequence(const int32_t* tokens, int64_t num_tokens, int64_t first_position,
                             const std::vector<int32_t>& block_table, int64_t page_size, int64_t num_logit_rows) {
  if (!status_.ok()) return;
  status_ = catch_out_of_memory([&]() -> Status {
    PROLOGUE_RETURN_IF_ERROR(check_sequence(tokens, num_tokens, first_position, block_table, page_size, num_logit_rows));
    for (int64_t i = 0; i < num_tokens; ++i) {
      const int64_t position = first_position + i;
      const int64_t page = block_table[static_cast<size_t>(position / page_size)];
      token_ids_.push_back(tokens[i]);
      for (auto& axis : positions_) axis.push_back(static_cast<int32_t>(position));
      slot_mapping_.push_back(page * page_size + position % page_size);
      if (i >= num_tokens - num_logit_rows) logit_rows_.push_back(static_cast<int32_t>(token_ids_.size()) - 1);
    }
    ends_.push_back(static_cast<int32_t>(token_ids_.size()));
    seq_lens_.push_back(static_cast<int32_t>(first_position + num_tokens));
    block_tables_.push_back(block_table);
    max_seqlen_q_ = std::max(max_seqlen_q_, num_tokens);
    max_seq_len_ = std::max(max_seq_len_, first_position + num_tokens);
    return {};
  });
}

void StepBatch::set_position(int64_t token, int64_t axis, int32_t position) {
  if (!status_.ok()) return;
  const auto num_axes = static_cast<int64_t>(positions_.size());
  if (token < 0 || token >= num_tokens() || axis < 0 || axis >= num_axes) {
    status_ = invalid_argument("step: the position of token ", token, " on axis ", axis, " is set: the batch has ",
                               num_tokens(), " tokens and ", num_axes, " axes");
    return;
  }
  positions_[static_cast<size_t>(axis)][static_cast<size_t>(token)] = position;
}

namespace {

// Arrays packed one after another in a staging buffer, each at a multiple of 16 bytes.
class Packer {
 public:
  explicit Packer(void* bytes) : bytes_(static_cast<unsigned char*>(bytes)) {}

  // Reserves space for `count` values and returns its beginning.
  template <class T>
  T* add(int64_t count, int64_t& at) {
    at = end_;
    end_ = (end_ + count * static_cast<int64_t>(sizeof(T)) + 15) / 16 * 16;
    return reinterpret_cast<T*>(bytes_ + at);
  }
  template <class T>
  int64_t add(const std::vector<T>& values) {
    int64_t at = 0;
    std::copy(values.begin(), values.end(), add<T>(static_cast<int64_t>(values.size()), at));
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
  const struct {
    const char* name;
    int64_t value;
  } sizes[] = {{"max_tokens", max_tokens}, {"max_seqs", max_seqs}, {"max_pages_per_seq", max_pages_per_seq}};
  for (const auto& [name, value] : sizes) {
    if (value < 0 || value > INT32_MAX) {
      return invalid_argument("step buffers: ", name, " is ", value, ": it must be between 0 and ", INT32_MAX);
    }
  }
  if (num_position_axes < 1 || num_position_axes > kMaxPositionAxes) {
    return invalid_argument("step buffers: num_position_axes is ", num_position_axes, ": it must be between 1 and ",
                            kMaxPositionAxes);
  }
  StepBuffers buffers;
  buffers.max_tokens_ = max_tokens;
  buffers.max_seqs_ = max_seqs;
  buffers.max_pages_per_seq_ = max_pages_per_seq;
  buffers.num_position_axes_ = num_position_axes;
  const int64_t per_token = (2 + num_position_axes) * 4 + 8;  // ids, logit rows, positions; slots
  const int64_t tables = max_seqs * max_pages_per_seq;        // below 2^62
  if (tables > INT64_MAX / 8)
    return resource_exhausted("step buffers: ", max_seqs, " block tables of ", max_pages_per_seq, " pages");
  const int64_t num_bytes = max_tokens * per_token + (2 * max_seqs + 1) * 4 + std::max<int64_t>(tables, 1) * 4 + 7 * 16;
  PROLOGUE_ASSIGN_OR_RETURN(buffers.staging_, StagingBuffer::allocate(device, num_bytes));
  PROLOGUE_ASSIGN_OR_RETURN(buffers.device_, Buffer::allocate(device, num_bytes));
  return buffers;
}

Result<StepInputs> StepBuffers::upload(const StepBatch& batch, const Execution& execution) {
  PROLOGUE_RETURN_IF_ERROR(batch.status());
  if (batch.num_tokens() > max_tokens_ || batch.num_seqs() > max_seqs_) {
    return invalid_argument("the step has ", batch.num_tokens(), " tokens of ", batch.num_seqs(), " sequences: its buffers hold ",
                            max_tokens_, " tokens of ", max_seqs_, " sequences");
  }
  const auto num_axes = static_cast<int64_t>(batch.positions_.size());
  if (num_axes > num_position_axes_) {
    return invalid_argument("the step has positions on ", num_axes, " axes: its buffers hold ", num_position_axes_);
  }
  int64_t table_width = 1;
  for (const auto& table : batch.block_tables_) table_width = std::max(table_width, static_cast<int64_t>(table.size()));
  if (batch.num_seqs() > 0 && table_width > max_pages_per_seq_) {
    return invalid_argument("a sequence of the step has ", table_width, " pages: its buffers hold ", max_pages_per_seq_,
                            " a sequence");
  }

  PROLOGUE_ASSIGN_OR_RETURN(void* const staging, staging_.fill());
  Packer packer(staging);
  const int64_t slots = packer.add(batch.slot_mapping_);
  const int64_t ids = packer.add(batch.token_ids_);
  int64_t positions = 0, offsets = 0, table = 0;
  auto* position = packer.add<int32_t>(num_axes * batch.num_tokens(), positions);
  for (const auto& stream : batch.positions_) position = std::copy(stream.begin(), stream.end(), position);
  auto* offset = packer.add<int32_t>(batch.num_seqs() + 1, offsets);
  *offset = 0;
  std::copy(batch.ends_.begin(), batch.ends_.end(), offset + 1);
  const int64_t lens = packer.add(batch.seq_lens_);
  const int64_t rows = packer.add(batch.logit_rows_);
  auto* row = packer.add<int32_t>(batch.num_seqs() * table_width, table);
  for (const auto& pages : batch.block_tables_) {
    std::fill(std::copy(pages.begin(), pages.end(), row), row + table_width, -1);
    row += table_width;
  }
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
