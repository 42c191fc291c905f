#include <algorithm>
#include <cstddef>
#include <cstdint>

#include <prologue/kernels/base/divide_up.h>
#include <prologue/kernels/base/out_of_memory.h>
#include <prologue/layers/step.h>

namespace prologue {

namespace {

constexpr int64_t kMaxPositionAxes = 4;

// The entries are in the order of StepArray and StepCount.
constexpr StepMember kArrays[] = {
    {"token_ids", offsetof(StepInputs, token_ids), DType::int32},
    {"positions", offsetof(StepInputs, positions), DType::int32},
    {"slot_mapping", offsetof(StepInputs, slot_mapping), DType::int64, true},
    {"cu_seqlens_q", offsetof(StepInputs, cu_seqlens_q), DType::int32},
    {"seq_lens", offsetof(StepInputs, seq_lens), DType::int32},
    {"block_table", offsetof(StepInputs, block_table), DType::int32, true},
    {"logit_rows", offsetof(StepInputs, logit_rows), DType::int32},
};
constexpr StepMember kCounts[] = {
    {"num_tokens", offsetof(StepInputs, num_tokens), DType::unset},
    {"num_seqs", offsetof(StepInputs, num_seqs), DType::unset},
    {"num_decode_seqs", offsetof(StepInputs, num_decode_seqs), DType::unset},
    {"num_logit_rows", offsetof(StepInputs, num_logit_rows), DType::unset},
    {"max_seqlen_q", offsetof(StepInputs, max_seqlen_q), DType::unset},
    {"max_seq_len", offsetof(StepInputs, max_seq_len), DType::unset},
    {"max_pages_per_seq", offsetof(StepInputs, max_pages_per_seq), DType::unset},
    {"block_table_stride", offsetof(StepInputs, block_table_stride), DType::unset},
    {"position_axis_stride", offsetof(StepInputs, position_axis_stride), DType::unset},
};

}  // namespace

StepMember step_member(StepArray array) { return kArrays[static_cast<size_t>(array)]; }
StepMember step_member(StepCount count) { return kCounts[static_cast<size_t>(count)]; }

StepBatch::StepBatch(int64_t num_position_axes, int64_t num_groups) {
  status_ = catch_out_of_memory([&]() -> Status {
    if (num_position_axes < 1 || num_position_axes > kMaxPositionAxes) {
      return invalid_argument("num_position_axes is ", num_position_axes, ": it must be between 1 and ", kMaxPositionAxes);
    }
    if (num_groups < 1 || num_groups > kMaxLayerGroups) {
      return invalid_argument("num_groups is ", num_groups, ": it must be between 1 and ", kMaxLayerGroups);
    }
    slot_mapping_.resize(static_cast<size_t>(num_groups));
    positions_.resize(static_cast<size_t>(num_position_axes));
    return {};
  });
}

void StepBatch::clear() {
  if (!positions_.empty()) status_ = {};  // without axes the constructor failed
  token_ids_.clear();
  token_from_.clear();
  for (auto& axis : positions_) axis.clear();
  for (auto& group : slot_mapping_) group.clear();
  ends_.clear();
  seq_lens_.clear();
  pages_.clear();
  table_ends_.clear();
  logit_rows_.clear();
  sampling_rows_.clear();
  sampling_arrays_.clear();
  num_decode_seqs_ = 0;
  max_seqlen_q_ = 0;
  max_seq_len_ = 0;
  max_pages_ = 0;
  has_tokens_from_ = false;
  each_token_has_a_row_ = true;
}

Status StepBatch::check_sequence(const int32_t* tokens, int64_t num_tokens, int64_t first_position,
                                 const std::vector<int32_t>* const* block_tables, int64_t page_size,
                                 int64_t num_logit_rows) const {
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
  const int64_t num_pages = divide_up(first_position + num_tokens, page_size);
  for (size_t g = 0; g < slot_mapping_.size(); ++g) {
    const std::vector<int32_t>& block_table = *block_tables[g];
    if (num_pages > static_cast<int64_t>(block_table.size())) {
      return invalid_argument("step: the block table of a sequence has ", block_table.size(), " pages of ", page_size,
                              " tokens: its ", first_position + num_tokens, " tokens need ", num_pages);
    }
    for (int64_t i = first_position / page_size; i < num_pages; ++i) {
      if (const int32_t page = block_table[static_cast<size_t>(i)]; page < 0) {
        return invalid_argument("step: entry ", i, " of a block table is page ", page,
                                ": the pages of new tokens are not negative");
      }
    }
  }
  return {};
}

void StepBatch::add_sequence_of_groups(const int32_t* tokens, int64_t num_tokens, int64_t first_position,
                                       const std::vector<int32_t>* const* block_tables, int64_t page_size,
                                       int64_t num_logit_rows) {
  if (!status_.ok()) return;
  status_ = catch_out_of_memory([&]() -> Status {
    PROLOGUE_RETURN_IF_ERROR(check_sequence(tokens, num_tokens, first_position, block_tables, page_size, num_logit_rows));
    token_ids_.insert(token_ids_.end(), tokens, tokens + num_tokens);
    token_from_.resize(token_ids_.size(), -1);
    for (int64_t i = 0; i < num_tokens; ++i) {
      for (auto& axis : positions_) axis.push_back(static_cast<int32_t>(first_position + i));
    }
    for (size_t g = 0; g < slot_mapping_.size(); ++g) {
      const std::vector<int32_t>& block_table = *block_tables[g];
      int64_t index = first_position / page_size, offset = first_position % page_size;
      for (int64_t i = 0; i < num_tokens; ++i) {
        slot_mapping_[g].push_back(block_table[static_cast<size_t>(index)] * page_size + offset);
        if (++offset == page_size) ++index, offset = 0;
      }
      pages_.insert(pages_.end(), block_table.begin(), block_table.end());
      table_ends_.push_back(pages_.size());
      max_pages_ = std::max(max_pages_, static_cast<int64_t>(block_table.size()));
    }
    for (int64_t i = 0; i < num_logit_rows; ++i)
      logit_rows_.push_back(static_cast<int32_t>(this->num_tokens() - num_logit_rows + i));
    sampling_rows_.resize(logit_rows_.size());
    each_token_has_a_row_ = each_token_has_a_row_ && num_logit_rows == num_tokens;
    if (num_tokens <= 1 && num_decode_seqs_ == num_seqs()) ++num_decode_seqs_;
    ends_.push_back(static_cast<int32_t>(token_ids_.size()));
    seq_lens_.push_back(static_cast<int32_t>(first_position + num_tokens));
    max_seqlen_q_ = std::max(max_seqlen_q_, num_tokens);
    max_seq_len_ = std::max(max_seq_len_, first_position + num_tokens);
    return {};
  });
}

bool StepBatch::check_index(const char* what, int64_t index, int64_t count) {
  if (!status_.ok()) return false;
  if (index >= 0 && index < count) return true;
  status_ = invalid_argument("step: ", what, " ", index, " is set: the batch has ", count);
  return false;
}

void StepBatch::add_logit_row(int64_t token) {
  if (!check_index("the logits of token", token, num_tokens())) return;
  status_ = catch_out_of_memory([&]() -> Status {
    logit_rows_.push_back(static_cast<int32_t>(token));
    each_token_has_a_row_ = false;
    sampling_rows_.emplace_back();
    return {};
  });
}

void StepBatch::set_sampling(int64_t row, const SamplingRow& sampling) {
  if (check_index("row of logits", row, num_logit_rows())) sampling_rows_[static_cast<size_t>(row)] = sampling;
}

void StepBatch::set_sampling_arrays(int64_t row, int64_t rank, int32_t* counts, const float* bias) {
  if (!check_index("row of logits", row, num_logit_rows())) return;
  const Status status = catch_out_of_memory([&]() -> Status {
    sampling_arrays_.push_back({row, rank, counts, bias});
    return {};
  });
  if (!status.ok()) status_ = status;
}

void StepBatch::set_token_from(int64_t token, int32_t row) {
  if (!check_index("token", token, num_tokens())) return;
  if (row < 0) {
    status_ = invalid_argument("step: a token is row ", row, " of the previous step: rows are not negative");
    return;
  }
  token_from_[static_cast<size_t>(token)] = row;
  has_tokens_from_ = true;
}

void StepBatch::set_position(int64_t token, int64_t axis, int32_t position) {
  if (!status_.ok()) return;
  const auto num_axes = static_cast<int64_t>(positions_.size());
  if (token < 0 || token >= num_tokens() || axis < 0 || axis >= num_axes) {
    status_ = invalid_argument("step: the position of token ", token, " on axis ", axis, " is set: the batch has ", num_tokens(),
                               " tokens and ", num_axes, " axes");
    return;
  }
  positions_[static_cast<size_t>(axis)][static_cast<size_t>(token)] = position;
}

StepBuffers::Offsets StepBuffers::lay_out(const StepSizes& sizes) {
  int64_t end = 0;
  const auto place = [&](int64_t count, int64_t size) {
    const int64_t begin = end;
    end = round_up(end + count * size, 16);
    return begin;
  };
  Offsets at;
  at.token_ids = place(sizes.max_tokens, 4);
  at.token_from = place(sizes.max_tokens, 4);
  at.positions = place(sizes.num_position_axes * sizes.max_tokens, 4);
  at.slot_mapping = place(sizes.num_groups * sizes.max_tokens, 8);
  at.cu_seqlens_q = place(sizes.max_seqs + 1, 4);
  at.seq_lens = place(sizes.max_seqs, 4);
  at.logit_rows = place(sizes.max_logit_rows, 4);
  at.sampling_rows = place(sizes.max_logit_rows, sizeof(SamplingRow));
  at.block_tables = place(std::max<int64_t>(sizes.num_groups * sizes.max_seqs * sizes.max_pages_per_seq, 1), 4);
  at.end = end;
  return at;
}

Result<StepBuffers> StepBuffers::create(const StepSizes& sizes, Device device) {
  const struct {
    const char* name;
    int64_t value, least, limit;
  } checks[] = {{"max_tokens", sizes.max_tokens, 0, INT32_MAX},
                {"max_seqs", sizes.max_seqs, 0, INT32_MAX},
                {"max_logit_rows", sizes.max_logit_rows, 0, INT32_MAX},
                {"max_pages_per_seq", sizes.max_pages_per_seq, 0, INT32_MAX},
                {"num_position_axes", sizes.num_position_axes, 1, kMaxPositionAxes},
                {"num_groups", sizes.num_groups, 1, kMaxLayerGroups}};
  for (const auto& [name, value, least, limit] : checks) {
    if (value < least || value > limit) {
      return invalid_argument("step buffers: ", name, " is ", value, ": it must be between ", least, " and ", limit);
    }
  }
  if (sizes.max_seqs * sizes.max_pages_per_seq > INT64_MAX / 8 / kMaxLayerGroups) {  // the product is below 2^62
    return resource_exhausted("step buffers: ", sizes.max_seqs, " block tables of ", sizes.max_pages_per_seq, " pages");
  }
  StepBuffers buffers;
  buffers.sizes_ = sizes;
  buffers.offsets_ = lay_out(sizes);
  PROLOGUE_ASSIGN_OR_RETURN(buffers.staging_, StagingBuffer::allocate(device, buffers.offsets_.end));
  PROLOGUE_ASSIGN_OR_RETURN(buffers.device_, Buffer::allocate(device, buffers.offsets_.end));
  return buffers;
}

StepInputs StepBuffers::arrays_at(void* base) const {
  const auto at = [&](auto*& array, int64_t offset) {
    array = reinterpret_cast<std::remove_reference_t<decltype(array)>>(static_cast<unsigned char*>(base) + offset);
  };
  StepInputs step;
  at(step.token_ids, offsets_.token_ids);
  at(step.token_from, offsets_.token_from);
  at(step.positions, offsets_.positions);
  at(step.cu_seqlens_q, offsets_.cu_seqlens_q);
  at(step.seq_lens, offsets_.seq_lens);
  at(step.logit_rows, offsets_.logit_rows);
  at(step.sampling_rows, offsets_.sampling_rows);
  for (int64_t g = 0; g < sizes_.num_groups; ++g) {
    at(step.slot_mapping[g], offsets_.slot_mapping + g * sizes_.max_tokens * 8);
    at(step.block_table[g], offsets_.block_tables + g * sizes_.max_pages_per_seq * 4);
  }
  step.max_pages_per_seq = sizes_.max_pages_per_seq;
  step.block_table_stride = sizes_.num_groups * sizes_.max_pages_per_seq;  // a sequence's tables are side by side
  step.position_axis_stride = sizes_.max_tokens;
  return step;
}

Status StepBuffers::check_fits(const StepBatch& batch, const StepPadding& padding) const {
  PROLOGUE_RETURN_IF_ERROR(batch.status());
  if (batch.num_tokens() > sizes_.max_tokens || batch.num_seqs() > sizes_.max_seqs) {
    return invalid_argument("the step has ", batch.num_tokens(), " tokens of ", batch.num_seqs(), " sequences: its buffers hold ",
                            sizes_.max_tokens, " tokens of ", sizes_.max_seqs, " sequences");
  }
  if (batch.num_logit_rows() > sizes_.max_logit_rows) {
    return invalid_argument("the step has ", batch.num_logit_rows(), " rows of logits: its buffers hold ", sizes_.max_logit_rows);
  }
  const auto num_axes = static_cast<int64_t>(batch.positions_.size());
  if (num_axes > sizes_.num_position_axes) {
    return invalid_argument("the step has positions on ", num_axes, " axes: its buffers hold ", sizes_.num_position_axes);
  }
  if (const auto num_groups = static_cast<int64_t>(batch.slot_mapping_.size()); num_groups != sizes_.num_groups) {
    return invalid_argument("the step has ", num_groups, " layer groups: its buffers are for ", sizes_.num_groups);
  }
  if (batch.max_pages_ > sizes_.max_pages_per_seq) {
    return invalid_argument("a sequence of the step has ", batch.max_pages_, " pages: its buffers hold ",
                            sizes_.max_pages_per_seq, " a sequence");
  }
  if (padding.num_tokens < 0 || padding.num_tokens > std::min(sizes_.max_tokens, sizes_.max_logit_rows) || padding.num_seqs < 0 ||
      padding.num_seqs > sizes_.max_seqs || padding.max_seqlen_q < 0 || padding.max_seqlen_q > INT32_MAX) {
    return invalid_argument("the step is padded to ", padding.num_tokens, " tokens of ", padding.num_seqs, " sequences of up to ",
                            padding.max_seqlen_q, ": its buffers hold ", sizes_.max_tokens, " tokens of ", sizes_.max_seqs,
                            " sequences and ", sizes_.max_logit_rows, " rows of logits");
  }
  return {};
}

// `host` has arrays and counts, padding included.
void StepBuffers::fill(const StepBatch& batch, const StepInputs& host, int64_t rank) const {
  const auto fill_array = [](auto* to, const auto& from, int64_t count, auto padding) {
    std::fill(std::copy(from.begin(), from.end(), to), to + count, padding);
  };
  fill_array(host.token_ids, batch.token_ids_, host.num_tokens, 0);
  fill_array(host.token_from, batch.token_from_, host.num_tokens, -1);
  for (size_t a = 0; a < batch.positions_.size(); ++a) {
    fill_array(host.positions + static_cast<int64_t>(a) * host.position_axis_stride, batch.positions_[a], host.num_tokens, -1);
  }
  for (size_t g = 0; g < batch.slot_mapping_.size(); ++g) {
    fill_array(host.slot_mapping[g], batch.slot_mapping_[g], host.num_tokens, int64_t{-1});
  }
  host.cu_seqlens_q[0] = 0;
  fill_array(host.cu_seqlens_q + 1, batch.ends_, host.num_seqs, static_cast<int32_t>(batch.num_tokens()));
  fill_array(host.seq_lens, batch.seq_lens_, host.num_seqs, 0);
  fill_array(host.logit_rows, batch.logit_rows_, host.num_logit_rows, 0);
  fill_array(host.sampling_rows, batch.sampling_rows_, host.num_logit_rows, SamplingRow());
  for (const StepBatch::SamplingArrays& each : batch.sampling_arrays_) {
    if (each.rank != rank) continue;
    host.sampling_rows[each.row].counts = each.counts;
    host.sampling_rows[each.row].bias = each.bias;
  }
  // In memory the tables of all groups and sequences follow each other, as they do in the batch.
  int32_t* row = host.block_table[0];
  size_t begin = 0;
  for (const size_t end : batch.table_ends_) {
    std::fill(std::copy(batch.pages_.begin() + static_cast<std::ptrdiff_t>(begin),
                        batch.pages_.begin() + static_cast<std::ptrdiff_t>(end), row),
              row + host.max_pages_per_seq, -1);
    row += host.max_pages_per_seq;
    begin = end;
  }
}

Result<StepInputs> StepBuffers::upload(const StepBatch& batch, const Execution& execution, const StepPadding& padding,
                                       int64_t rank) {
  PROLOGUE_RETURN_IF_ERROR(check_fits(batch, padding));
  const auto set_counts = [&](StepInputs& step) {
    step.num_tokens = std::max(batch.num_tokens(), padding.num_tokens);
    step.num_seqs = std::max(batch.num_seqs(), padding.num_seqs);
    step.num_logit_rows = std::max(batch.num_logit_rows(), padding.num_tokens);
    const bool all_decode = batch.num_decode_seqs() == batch.num_seqs();
    // Of a padded step it must not depend on the batch.
    step.num_decode_seqs = all_decode ? step.num_seqs : padding.max_seqlen_q > 0 ? 0 : batch.num_decode_seqs();
    step.max_seqlen_q = std::max(batch.max_seqlen_q_, padding.max_seqlen_q);
    step.max_seq_len = batch.max_seq_len_;
    step.num_position_axes = static_cast<int64_t>(batch.positions_.size());
  };
  PROLOGUE_ASSIGN_OR_RETURN(void* const staging, staging_.fill());
  StepInputs host = arrays_at(staging), step = arrays_at(device_.data());
  set_counts(host);
  set_counts(step);
  fill(batch, host, rank);
  // The block tables of sequences that do not exist are not copied.
  const int64_t num_bytes = offsets_.block_tables + batch.num_seqs() * step.block_table_stride * 4;
  PROLOGUE_RETURN_IF_ERROR(staging_.copy_to_device(device_.data(), num_bytes, execution));
  return step;
}

}  // namespace prologue
