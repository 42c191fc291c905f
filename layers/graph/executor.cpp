#include <algorithm>
#include <cstring>
#include <memory>
#include <type_traits>
#include <utility>

#include <prologue/kernels/base/out_of_memory.h>
#include <prologue/kernels/internal/run.h>
#include <prologue/layers/graph/executor.h>

namespace prologue {

namespace {

// Operations in which all ranks take part.
template <class P>
concept IsCollective = requires(const P& params, const Communicator& communicator, const Execution& execution) {
  validate(params, communicator, execution);
};

template <class P>
Status validate_operation(const P& params, const GemmContext& context, const Communicator* communicator,
                          const Execution& execution) {
  if constexpr (IsCollective<P>) {
    if (communicator == nullptr)
      return invalid_argument("it exchanges values with other ranks: the executor has no communicator");
    return validate(params, *communicator, execution);
  } else if constexpr (requires { validate(params, context, execution); }) {
    return validate(params, context, execution);
  } else if constexpr (requires { validate(params, execution); }) {
    return validate(params, execution);
  } else {
    return validate(params, execution.device);
  }
}

// Operations that choose a kernel by their parameters, in every run unless these are as they were.
template <class P>
concept KeepsLaunch = requires(const P& params, KeptLaunch<P>& kept, GemmContext& context, const Execution& execution) {
  run_validated(params, kept, context, execution);
};

template <class P>
Status run_operation(const P& params, const void* kernel, void* kept, GemmContext& context, Communicator* communicator,
                     const Execution& execution) {
  if constexpr (std::is_same_v<P, AttentionPrologueParams>) {
    return run_kernel(kernel, params, execution);
  } else if constexpr (IsCollective<P>) {
    return run_validated(params, *communicator, execution);
  } else if constexpr (KeepsLaunch<P>) {
    return run_validated(params, *static_cast<KeptLaunch<P>*>(kept), context, execution);
  } else if constexpr (requires { run_validated(params, context, execution); }) {
    return run_validated(params, context, execution);
  } else {
    return run_validated(params, execution);
  }
}

std::shared_ptr<void> kept_launch(const Parameters& parameters) {
  return std::visit(
      []<class P>(const P&) -> std::shared_ptr<void> {
        if constexpr (KeepsLaunch<P>) return std::make_shared<KeptLaunch<P>>();
        return nullptr;
      },
      parameters);
}

void set_invariant(Parameters& parameters, bool batch_invariant) {
  const auto set = [&](auto& params) {
    if constexpr (requires { params.batch_invariant; }) params.batch_invariant = batch_invariant;
  };
  std::visit(set, parameters);
}

int64_t workspace_bytes_of(const PagedAttentionParams& params, Device device, const Communicator*) {
  return paged_attention_workspace_bytes(params, device);
}
int64_t workspace_bytes_of(const MoeGemmParams& params, Device device, const Communicator*) {
  return moe_gemm_workspace_bytes(params, device);
}
int64_t workspace_bytes_of(const QkvPrologueParams& params, Device, const Communicator*) {
  return qkv_prologue_workspace_bytes(params);
}
int64_t workspace_bytes_of(const ProjectionParams& params, Device, const Communicator*) {
  return projection_workspace_bytes(params);
}
int64_t workspace_bytes_of(const AllGatherParams& params, Device, const Communicator* communicator) {
  return communicator == nullptr ? 0 : all_gather_workspace_bytes(params, *communicator);
}

// Calls f with the parameters if their operation may need a workspace.
template <class F>
void with_workspace(Parameters& parameters, const F& f) {
  const auto call = [&](auto& params) {
    if constexpr (requires { params.workspace; }) f(params);
  };
  std::visit(call, parameters);
}

// Adds to an error which node it is from.
Status named(const Node& node, const Status& status) {
  return status.ok() ? status : error_status(status.code(), node.name, ": ", status.message());
}

// Returns the largest step. Its arrays are placeholders, 2^58 bytes apart (no array extends further): aligned, and never dereferenced.
StepInputs largest_step(const StepLimits& limits) {
  StepInputs step;
  step.num_tokens = limits.max_tokens;
  step.num_seqs = limits.max_seqs;
  step.num_decode_seqs = 0;
  step.num_logit_rows = limits.max_logit_rows;
  step.max_seqlen_q = std::max<int64_t>(limits.max_tokens, 1);
  step.max_seq_len = std::max<int64_t>(limits.max_seq_len, 1);
  step.max_pages_per_seq = 1;
  step.block_table_stride = 1;
  step.position_axis_stride = limits.max_tokens;
  uintptr_t next = 0;
  const auto placeholder = [&](auto*& array) {
    next += uintptr_t{1} << 58;
    array = reinterpret_cast<std::remove_reference_t<decltype(array)>>(next);
  };
  placeholder(step.token_ids);
  placeholder(step.positions);
  for (auto*& slots : step.slot_mapping) placeholder(slots);
  placeholder(step.cu_seqlens_q);
  placeholder(step.seq_lens);
  for (auto*& table : step.block_table) placeholder(table);
  placeholder(step.logit_rows);
  return step;
}

}  // namespace

Result<std::unique_ptr<GraphExecutor>> GraphExecutor::create(Graph graph, const KvStorage& cache, const StepLimits& limits,
                                                             const Execution& execution, FaultRecord* faults,
                                                             Communicator* communicator) {
  return catch_out_of_memory([&] { return make(std::move(graph), cache, limits, execution, faults, communicator); });
}

Result<std::unique_ptr<GraphExecutor>> GraphExecutor::make(Graph graph, const KvStorage& cache, const StepLimits& limits,
                                                           const Execution& execution, FaultRecord* faults,
                                                           Communicator* communicator) {
  std::unique_ptr<GraphExecutor> executor(new GraphExecutor());
  executor->communicator_ = communicator;
  executor->graph_ = std::move(graph);
  executor->limits_ = limits;
  executor->device_ = execution.device;
  executor->cache_ = &cache;
  PROLOGUE_ASSIGN_OR_RETURN(executor->plan_, plan_memory(executor->graph_, limits.max_tokens, limits.max_logit_rows));
  PROLOGUE_ASSIGN_OR_RETURN(executor->activations_, Buffer::allocate(execution.device, executor->plan_.total_bytes));
  PROLOGUE_ASSIGN_OR_RETURN(executor->token_faults_, Buffer::allocate(execution.device, std::max<int64_t>(limits.max_tokens, 0)));
  PROLOGUE_RETURN_IF_ERROR(fill_zero(executor->token_faults_.data(), executor->token_faults_.size_bytes(), execution));
  executor->faults_ = faults;
  if (faults == nullptr) {
    PROLOGUE_ASSIGN_OR_RETURN(executor->own_faults_, Buffer::allocate(execution.device, sizeof(FaultRecord)));
    PROLOGUE_RETURN_IF_ERROR(fill_zero(executor->own_faults_.data(), sizeof(FaultRecord), execution));
    executor->faults_ = executor->own_faults_.as<FaultRecord>();
  }
  PROLOGUE_ASSIGN_OR_RETURN(executor->gemm_context_, GemmContext::create(execution.device));
  PROLOGUE_RETURN_IF_ERROR(executor->prepare(execution));
  executor->events_.resize(executor->graph_.nodes.size() + 1);
  return executor;
}

Status GraphExecutor::prepare(const Execution& execution) {
  const std::vector<Node>& nodes = graph_.nodes;
  operations_.reserve(nodes.size());
  for (const Node& node : nodes) {
    operations_.push_back({node.parameters, nullptr, kept_launch(node.parameters)});
    auto* const params = static_cast<unsigned char*>(address_of(operations_.back().parameters));
    for (const Binding& binding : node.bindings)
      PROLOGUE_RETURN_IF_ERROR(named(node, bind(node, binding, params + binding.member)));
    position_axes_ = std::max(position_axes_, node.position_axes);
    set_invariant(operations_.back().parameters, limits_.batch_invariant);
  }
  patch(largest_step(limits_));

  int64_t workspace_bytes = 0;
  for (Operation& operation : operations_) {
    with_workspace(operation.parameters, [&](const auto& params) {
      workspace_bytes = std::max(workspace_bytes, workspace_bytes_of(params, device_, communicator_));
    });
  }
  PROLOGUE_ASSIGN_OR_RETURN(workspace_, Buffer::allocate(device_, workspace_bytes));
  for (Operation& operation : operations_) {
    with_workspace(operation.parameters, [&](auto& params) {
      params.workspace = workspace_.data();
      params.workspace_bytes = workspace_.size_bytes();
    });
  }

  if (device_ == Device::cuda) {
    PROLOGUE_ASSIGN_OR_RETURN(attention_counters_,
                              Buffer::allocate(device_, kPagedAttentionCounters * static_cast<int64_t>(sizeof(uint32_t))));
    PROLOGUE_RETURN_IF_ERROR(fill_zero(attention_counters_.data(), attention_counters_.size_bytes(), execution));
    for (size_t n = 0; n < nodes.size(); ++n) {
      auto* attention = std::get_if<PagedAttentionParams>(&operations_[n].parameters);
      if (attention == nullptr) continue;
      attention->counters = static_cast<uint32_t*>(attention_counters_.data());
      attention->past_is_ready = begins_early(graph_, n, limits_.max_tokens);
    }
  }

  if (limits_.max_tokens == 0) return {};  // no step has any work
  for (size_t n = 0; n < nodes.size(); ++n) {
    const auto check = [&](const auto& params) { return validate_operation(params, *gemm_context_, communicator_, execution); };
    PROLOGUE_RETURN_IF_ERROR(named(nodes[n], std::visit(check, operations_[n].parameters)));
    const auto* prologue = std::get_if<AttentionPrologueParams>(&operations_[n].parameters);
    if (prologue == nullptr) continue;
    PROLOGUE_ASSIGN_OR_RETURN(operations_[n].kernel, choose_kernel(*prologue, execution));
  }
  return {};
}

// Returns the layer group whose slots and block tables a node uses.
int64_t GraphExecutor::group_of(const Node& node) const {
  const Binding* cache = node.cache_binding();
  const std::vector<int32_t>& groups = cache_->config().group_of_layer;
  if (cache == nullptr || cache->index < 0 || cache->index >= static_cast<int64_t>(groups.size())) return 0;
  return groups[static_cast<size_t>(cache->index)];
}

// Fills in a member that no step changes, or notes what it will be in each step.
Status GraphExecutor::bind(const Node& node, const Binding& binding, void* member) {
  const auto set = [&](const auto& value) { std::memcpy(member, &value, sizeof value); };
  switch (binding.to) {
    case Binding::To::read:
    case Binding::To::write:
    case Binding::To::update: set(address({static_cast<int32_t>(binding.index)}, binding.column)); break;
    case Binding::To::array: {
      const StepMember array = step_member(static_cast<StepArray>(binding.index));
      const int64_t group = array.by_group ? group_of(node) : 0;
      patches_.push_back({member, array.offset + static_cast<int32_t>(group * 8)});
      reads_[static_cast<size_t>(binding.index * kMaxLayerGroups + group)] = true;
      break;
    }
    case Binding::To::count: patches_.push_back({member, step_member(static_cast<StepCount>(binding.index)).offset}); break;
    case Binding::To::table:
      tables_.push_back(binding.table->memory());
      set(binding.table->cos_sin() + binding.column);
      break;
    case Binding::To::table_rows: set(binding.table->max_position()); break;
    case Binding::To::cache_read:
    case Binding::To::cache_write: {
      const int64_t num_layers = cache_->config().num_layers;
      if (binding.index < 0 || binding.index >= num_layers) {
        return invalid_argument("it uses the cache of layer ", binding.index, ": there are caches for ", num_layers, " layers");
      }
      PagedKvView needed;
      std::memcpy(&needed, member, sizeof needed);
      const PagedKvView layer = cache_->layer(binding.index);
      if (needed.v.head_dim != v_head_dim(layer)) {
        return invalid_argument("its heads of V have ", needed.v.head_dim, " channels: those in the cache of layer ",
                                binding.index, " have ", v_head_dim(layer));
      }
      set(layer);
      break;
    }
    case Binding::To::one_or_many: one_or_many_.push_back({static_cast<bool*>(member), binding.index}); break;
    case Binding::To::faults: set(faults_); break;
    case Binding::To::token_faults: set(token_faults()); break;
  }
  return {};
}

Status GraphExecutor::check_step(const StepInputs& step, const Execution& execution) const {
  if (execution.device != device_) {
    return invalid_argument("step: device is ", device_name(execution.device), ": this executor was made for ",
                            device_name(device_));
  }
  if (device_ == Device::cpu && execution.num_threads < 1) {
    return invalid_argument("step: num_threads is ", execution.num_threads, ": it must be at least 1");
  }
  const int64_t attends = step.num_tokens > 0 && step.num_seqs > 0 ? 1 : 0;
  const struct {
    const char* name;
    int64_t value, least, limit;
  } checks[] = {{"num_tokens", step.num_tokens, 0, limits_.max_tokens},
                {"num_logit_rows", step.num_logit_rows, 0, limits_.max_logit_rows},
                {"num_seqs", step.num_seqs, 0, limits_.max_seqs},
                {"num_decode_seqs", step.num_decode_seqs, 0, step.num_seqs},
                {"max_seqlen_q", step.max_seqlen_q, attends, limits_.max_tokens},
                {"max_seq_len", step.max_seq_len, attends, limits_.max_seq_len}};
  for (const auto& [name, value, least, limit] : checks) {
    if (value < least || value > limit) {
      return invalid_argument("step: ", name, " is ", value, ": this executor was made for ", least, " to ", limit);
    }
  }
  if (step.num_position_axes < position_axes_) {
    return invalid_argument("step: positions have ", step.num_position_axes, " axes: the graph needs ", position_axes_);
  }
  if (step.max_pages_per_seq < attends || step.max_pages_per_seq > INT32_MAX) {
    return invalid_argument("step: max_pages_per_seq is ", step.max_pages_per_seq, ": it must lie in ", attends, "..", INT32_MAX);
  }
  if (step.block_table_stride < step.max_pages_per_seq || step.block_table_stride > INT32_MAX) {
    return invalid_argument("step: block_table_stride is ", step.block_table_stride, ": it must lie in ", step.max_pages_per_seq,
                            " (max_pages_per_seq)..", INT32_MAX);
  }

  RegionChecks regions("step");
  const int64_t num_seqs = attends * step.num_seqs;
  // A block table has its first row, and the entries of the others with the gaps between them.
  const int64_t table = num_seqs > 0 ? (num_seqs - 1) * step.block_table_stride + step.max_pages_per_seq : 0;
  const int64_t counts[kNumStepArrays] = {step.num_tokens, step.num_tokens, step.num_tokens,    num_seqs + attends,
                                          num_seqs,        table,           step.num_logit_rows};
  for (size_t i = 0; i < reads_.size(); ++i) {
    if (!reads_[i]) continue;
    const auto array = static_cast<StepArray>(i / kMaxLayerGroups);
    const StepMember member = step_member(array);
    const void* data = nullptr;
    std::memcpy(&data, reinterpret_cast<const unsigned char*>(&step) + member.offset + i % kMaxLayerGroups * 8, sizeof data);
    Region region = array_region(member.name, data, counts[static_cast<size_t>(array)], dtype_size(member.type));
    if (array == StepArray::positions && position_axes_ > 1) {
      region.counts[1] = position_axes_;
      if (__builtin_mul_overflow(step.position_axis_stride, 4, &region.strides[1])) region.strides[1] = INT64_MAX;
    }
    PROLOGUE_RETURN_IF_ERROR(regions.read(region));
  }
  const auto write = [&](const char* name, const void* data, int64_t bytes) {
    return regions.write(array_region(name, data, bytes, 1));
  };
  PROLOGUE_RETURN_IF_ERROR(write("activations", activations_.data(), plan_.total_bytes));
  PROLOGUE_RETURN_IF_ERROR(write("workspace", workspace_.data(), workspace_.size_bytes()));
  PROLOGUE_RETURN_IF_ERROR(write("attention counters", attention_counters_.data(), attention_counters_.size_bytes()));
  PROLOGUE_RETURN_IF_ERROR(write("faults", faults_, sizeof(FaultRecord)));
  PROLOGUE_RETURN_IF_ERROR(write("token_faults", token_faults_.data(), token_faults_.size_bytes()));
  PROLOGUE_RETURN_IF_ERROR(write("cache", cache_->memory().data(), cache_->memory().size_bytes()));
  return regions.check_all_apart();
}

void GraphExecutor::patch(const StepInputs& step) {
  const auto* const from = reinterpret_cast<const unsigned char*>(&step);
  for (const Patch& each : patches_) std::memcpy(each.member, from + each.from, sizeof(int64_t));
  for (const auto& [member, many] : one_or_many_) *member = step.num_tokens == 1 || step.num_tokens >= many;
}

Status GraphExecutor::launch(size_t node, const Execution& execution) {
  const Operation& operation = operations_[node];
  const auto run = [&](const auto& params) {
    return run_operation(params, operation.kernel, operation.kept.get(), *gemm_context_, communicator_, execution);
  };
  const Status status = std::visit(run, operation.parameters);
  return status.ok() ? status : named(graph_.nodes[node], status);
}

Status GraphExecutor::run(const StepInputs& step, const Execution& execution) {
  PROLOGUE_RETURN_IF_ERROR(check_step(step, execution));
  patch(step);
  for (size_t n = 0; n < operations_.size(); ++n) PROLOGUE_RETURN_IF_ERROR(launch(n, execution));
  return {};
}

Status GraphExecutor::run_profiled(const StepInputs& step, const Execution& execution) {
  return catch_out_of_memory([&] { return run_timed(step, execution); });
}

Status GraphExecutor::run_timed(const StepInputs& step, const Execution& execution) {
  PROLOGUE_RETURN_IF_ERROR(check_step(step, execution));
  patch(step);
  for (size_t n = 0; n < operations_.size(); ++n) {
    PROLOGUE_RETURN_IF_ERROR(events_[n].record(execution));
    PROLOGUE_RETURN_IF_ERROR(launch(n, execution));
  }
  PROLOGUE_RETURN_IF_ERROR(events_.back().record(execution));
  node_seconds_.resize(operations_.size());
  for (size_t n = 0; n < operations_.size(); ++n) {
    PROLOGUE_ASSIGN_OR_RETURN(node_seconds_[n], Event::seconds_between(events_[n], events_[n + 1]));
  }
  return {};
}

void* GraphExecutor::data(Value value) const { return value ? address(value, 0) : nullptr; }

void* GraphExecutor::address(Value value, int64_t column) const {
  if (activations_.data() == nullptr) return nullptr;  // the largest step has no rows
  const ValueInfo& info = graph_.info(value);
  const int64_t offset = plan_.offsets[static_cast<size_t>(graph_.storage_of(value).id)];
  return activations_.as<unsigned char>() + offset + (info.base_column + column) * dtype_size(info.dtype);
}

Result<Fault> GraphExecutor::take_fault(const Execution& execution) {
  FaultRecord record;
  PROLOGUE_RETURN_IF_ERROR(copy_to_host(&record, faults_, sizeof record, execution));
  if (record.count != 0) PROLOGUE_RETURN_IF_ERROR(fill_zero(faults_, sizeof record, execution));
  return decode_fault(record);
}

}  // namespace prologue
