#include <prologue/kernels/attention_prologue/prologue_args.h>

#include <algorithm>
#include <limits>

#include <prologue/kernels/attention_prologue/described/args.h>
#include <prologue/kernels/attention_prologue/head_groups.h>
#include <prologue/kernels/attention_prologue/prologue_choice.h>

namespace prologue::cuda {

namespace {

template <class Stride>
Stride bytes_of(int64_t elements, int64_t bits) {
  return static_cast<Stride>(elements * bits / 8);
}

const char* bytes_of(const void* data) { return static_cast<const char*>(data); }
uint32_t step_of(const IndexView& view) { return view.type == DType::int64 ? 8 : 4; }

HeadLayout layout_of(int64_t head_dim, const Rope& rope) {
  return {static_cast<int32_t>(head_dim), static_cast<int32_t>(rope.rotary_dim),
          static_cast<int32_t>(rope.rotary_dim > 0 ? rope.rotary_offset : 0), rope.style};
}

// `bits` are those of an element of `in`.
template <class Stride>
void fill_tensor(TensorArgs<Stride>& tensor, const HeadsView& in, int64_t bits, void* out, const PageStrides& out_strides,
                 int64_t out_bits, int64_t heads) {
  tensor.in = bytes_of(in.data);
  tensor.in_token = bytes_of<Stride>(in.token_stride, bits);
  tensor.in_head = bytes_of<Stride>(in.head_stride, bits);
  tensor.out = static_cast<char*>(out);
  tensor.out_page = bytes_of<Stride>(out_strides.page, out_bits);
  tensor.out_token = bytes_of<Stride>(out_strides.token, out_bits);
  tensor.out_head = bytes_of<Stride>(out_strides.head, out_bits);
  tensor.heads = static_cast<int32_t>(heads);
}

// Of heads whose output has a row for each token.
template <class Stride>
void fill_tensor(TensorArgs<Stride>& tensor, const HeadsView& in, int64_t bits, const MutableHeadsView& out,
                 const QuantizedQuery& q8, int64_t heads) {
  if (q8.data != nullptr) {
    fill_tensor(tensor, in, bits, q8.data, {0, q8.token_stride, q8.head_stride}, 8, heads);
  } else {
    fill_tensor(tensor, in, bits, out.data, {0, out.token_stride, out.head_stride}, bits, heads);
  }
}

// Of heads that are cached.
template <class Stride>
void fill_tensor(TensorArgs<Stride>& tensor, const HeadsView& in, int64_t bits, const PagedHeads& side, int64_t heads) {
  fill_tensor(tensor, in, bits, side.data, side.strides, dtype_bits(side.format.type), heads);
}

template <class Stride, class Tensor>
void fill_tensors(const AttentionPrologueParams& p, Tensor* tensors) {
  const int64_t bits = dtype_size(p.dtype) * 8;
  fill_tensor<Stride>(tensors[0], p.q, bits, p.q_out, p.q8_out, p.num_q_heads);
  if (has_k(p)) fill_tensor<Stride>(tensors[1], p.k, bits, p.cache.k, p.num_kv_heads);
  if (has_v(p)) fill_tensor<Stride>(tensors[2], p.v, bits, p.cache.v, p.num_kv_heads);
}

// Fills in what all lean kernels need. They read both index arrays and the table: where there are none any address will do.
template <class Tensor>
void fill_core(const AttentionPrologueParams& p, CoreArgs<Tensor>& args) {
  fill_tensors<uint32_t>(p, args.tensors);
  args.positions = bytes_of(p.places.positions.data);
  args.position_step = step_of(p.places.positions);
  if (writes_cache(p)) {
    args.slots = bytes_of(p.places.slot_mapping.data);
    args.slot_step = step_of(p.places.slot_mapping);
    args.num_slots = static_cast<uint32_t>(num_slots(p.cache));
    args.pages = page_divider(p.cache.page_size);
  }
  args.cos_sin = static_cast<const float*>(p.rope.cos.data);
  args.max_position = static_cast<uint32_t>(p.rope.max_position);
  args.layout = layout_of(p.head_dim, p.rope);
  args.row_is_token = p.rope.source == RopeSource::per_token ? 1 : 0;
  args.faults = p.faults;
  args.token_faults = p.token_faults;
  const char* any = args.tensors[args.tensors[0].heads > 0 ? 0 : args.tensors[1].heads > 0 ? 1 : 2].in;
  if (args.positions == nullptr) args.positions = any, args.position_step = 0;
  if (p.rope.rotary_dim == 0) args.cos_sin = reinterpret_cast<const float*>(any);  // rows of no bytes: a head has enough to read
  if (args.slots == nullptr) args.slots = args.positions, args.slot_step = args.position_step;
}

// Fills in the scales of what a tensor stores. `add(tensor, type, scaling)` takes what else there is to know.
template <class Tensor, class Add>
void fill_scales(Tensor& tensor, DType type, KvScaling scaling, float* scales, const PageStrides& computed_strides,
                 const Add& add) {
  using Stride = decltype(tensor.scale_page);
  add(tensor, type, scaling);
  if (scaling == KvScaling::none) return;
  tensor.scale = reinterpret_cast<char*>(scales);
  if (scaling == KvScaling::token_head) {
    tensor.scale_page = bytes_of<Stride>(computed_strides.page, 32);
    tensor.scale_token = bytes_of<Stride>(computed_strides.token, 32);
    tensor.scale_head = bytes_of<Stride>(computed_strides.head, 32);
  } else if (scaling == KvScaling::head) {
    tensor.scale_head = 4;
  }
}

template <class Tensor, class Add>
void fill_scales(Tensor& tensor, const QuantizedQuery& q8, int64_t num_heads, const Add& add) {
  if (q8.data != nullptr) fill_scales(tensor, q8.type, q8.scaling, q8.scale, {0, num_heads, 1}, add);
}

template <class Tensor, class Add>
void fill_scales(Tensor& tensor, const PagedHeads& side, DType dtype, const Add& add) {
  if (side.data == nullptr || side.format.type == dtype) return;
  fill_scales(tensor, side.format.type, side.format.scaling, side.scale, side.scale_strides, add);
}

// Those of Q as fp8, and of K and V.
template <class Tensor, class Add>
void fill_scales(const AttentionPrologueParams& p, Tensor* tensors, const Add& add) {
  fill_scales(tensors[0], p.q8_out, p.num_q_heads, add);
  fill_scales(tensors[1], p.cache.k, p.dtype, add);
  fill_scales(tensors[2], p.cache.v, p.dtype, add);
}

// The type that is stored, too. LeanTensor and TensorExtras have the same members for it.
constexpr auto kAddStore = [](auto& tensor, DType type, KvScaling scaling) {
  tensor.store = type;
  tensor.scale_from = scale_source(scaling);
};

// What only block-scaled formats have. TensorExtras and DescribedTensor have the same members for it.
template <class Tensor>
void fill_block_scales(Tensor& tensor, const PagedHeads& side) {
  if (side.data == nullptr || !is_block_scaled(side.format)) return;
  using Stride = decltype(tensor.scale_page);
  tensor.block_scale = side.block_scale;
  tensor.scale_page = bytes_of<Stride>(side.scale_strides.page, 8);
  tensor.scale_token = bytes_of<Stride>(side.scale_strides.token, 8);
  tensor.scale_head = bytes_of<Stride>(side.scale_strides.head, 8);
}
void fill_blocks(TensorExtras& extras, const PagedHeads& side) {
  if (side.data == nullptr || !is_block_scaled(side.format)) return;
  fill_block_scales(extras, side);
  extras.block_scaling = side.format.scaling;
  extras.block_scale_layout = side.block_scale_layout;
}

// k_out and v_out. MostStepsTensor, TensorExtras and DescribedTensor have the same members for it.
template <class Tensor>
void fill_second_output(Tensor& tensor, const MutableHeadsView& out, int64_t bits) {
  using Stride = decltype(tensor.second_token);
  tensor.second_out = static_cast<char*>(out.data);
  tensor.second_token = bytes_of<Stride>(out.token_stride, bits);
  tensor.second_head = bytes_of<Stride>(out.head_stride, bits);
}

template <class Tensor>
void fill_second_outputs(const AttentionPrologueParams& p, Tensor* tensors) {
  fill_second_output(tensors[1], p.k_out, dtype_size(p.dtype) * 8);
  fill_second_output(tensors[2], p.v_out, dtype_size(p.dtype) * 8);
}

void fill_steps(const HeadPlan& plan, LeanTensor& tensor) {
  tensor.bias = bytes_of(plan.bias);
  tensor.weight = bytes_of(plan.norm.weight);
  tensor.eps = plan.norm.eps;
  tensor.weight_offset = plan.norm.weight_offset;
  tensor.inverse_count = plan.inverse_count;
}

void fill_steps(const HeadPlan& plan, MostStepsTensor& tensor) {
  const HeadNorm& norm = plan.norm;
  tensor.norm = norm.placement;
  tensor.kind = norm.kind;
  tensor.scope = norm.scope;
  tensor.float_weights = norm.weight_type == DType::f32 ? 1 : 0;
  tensor.weight_head = bytes_of<uint32_t>(norm.weight_head_stride, dtype_bits(norm.weight_type));
  tensor.norm_bias = bytes_of(norm.bias);
  tensor.hadamard_block = plan.hadamard_block;
  tensor.hadamard_factor = plan.hadamard_factor;
}

// Fills in what the instances with steps have in common.
void fill_lean(const AttentionPrologueParams& p, int features, const HeadPlans& plans, LeanArgs& args) {
  fill_core(p, args);
  const TokenPlaces& t = p.places;
  if (t.positions.data == nullptr && (features & kDerived) == 0) args.max_position = 0;
  args.features = features;
  fill_steps(plans.q, args.tensors[0]);
  fill_steps(plans.k, args.tensors[1]);
  fill_steps(plans.v, args.tensors[2]);
  for (LeanTensor& tensor : args.tensors) tensor.scale = const_cast<char*>(tensor.in);  // read, but not used
  fill_scales(p, args.tensors, kAddStore);
  args.axes.pair_axis = p.rope.pair_axis;
  for (int64_t axis = 1; axis < p.rope.num_axes; ++axis) {
    args.axes.offset[axis - 1] = axis * t.position_axis_stride * step_of(t.positions);
  }
  args.sequences = sequence_args(t);
  const PageTable& table = t.page_table;
  args.page_table = {table.block_table, static_cast<uint32_t>(table.block_table_stride),
                     static_cast<uint32_t>(std::min(table.max_pages_per_seq * p.cache.page_size, int64_t{INT32_MAX})),
                     static_cast<uint32_t>(p.cache.num_pages)};
}

}  // namespace

void fill(const AttentionPrologueParams& p, int features, PlainArgs& args) {
  fill_core(p, args);
  if (p.places.positions.data == nullptr) args.max_position = 0;
  // Without features both arrays are read as if they were given.
  const bool no_slots = !writes_cache(p) || p.places.slot_mapping.data == nullptr;
  if (features == 0 && no_slots) args.num_slots = std::numeric_limits<uint32_t>::max();
}

void fill(const AttentionPrologueParams& p, int features, LeanArgs& args) {
  fill_lean(p, features, head_plans(p), args);
  args.tensors[2].weight = args.tensors[args.tensors[0].heads > 0 ? 0 : 1].weight;  // read, but not used
}

void fill(const AttentionPrologueParams& p, int features, MostStepsArgs& args) {
  const HeadPlans plans = head_plans(p);
  fill_lean(p, features, plans, args);
  fill_steps(plans.q, args.more[0]);
  fill_steps(plans.k, args.more[1]);
  fill_steps(plans.v, args.more[2]);
  fill_second_outputs(p, args.more);
  args.rounds = plans.q.rounds;
  args.past_table = p.rope.past_table;
  args.q_scale = p.q_scale;
  args.inverse = p.rope.inverse;
  args.ring_size = derives_slots(p) ? static_cast<uint32_t>(p.places.ring_size) : 0;
}

void fill(const AttentionPrologueParams& p, int64_t vector, GeneralArgs& args) {
  const int64_t bits = dtype_size(p.dtype) * 8;
  fill_tensors<int64_t>(p, args.tensors);
  fill_scales(p, args.extras, kAddStore);
  fill_second_outputs(p, args.extras);
  args.token = token_args(p);
  args.ropes[0] = p.rope;
  const HeadPlans plans = head_plans(p);
  const auto steps = [&](TensorExtras& extras, const HeadPlan& plan, const Rope& rope) {
    extras.plan = plan;
    extras.rotates = rope.rotary_dim > 0 ? 1 : 0;
    const bool halves = plan.width % (2 * vector) == 0;
    extras.layout = {{static_cast<int32_t>(plan.width), static_cast<int32_t>(halves ? plan.width : 0), 0, RopeStyle::neox}, 1};
    if (extras.rotates != 0) extras.layout = {layout_of(plan.width, rope), static_cast<int32_t>(rope.num_blocks)};
  };
  steps(args.extras[0], plans.q, p.rope);
  steps(args.extras[1], plans.k, p.rope);
  steps(args.extras[2], plans.v, {});
  fill_blocks(args.extras[1], p.cache.k);
  fill_blocks(args.extras[2], p.cache.v);
  const auto rotated = [&](TensorExtras& extras, const HeadsView& in) {
    extras.rotated_in = bytes_of(in.data);
    extras.rotated_token = bytes_of<int64_t>(in.token_stride, bits);
    extras.rotated_head = bytes_of<int64_t>(in.head_stride, bits);
  };
  rotated(args.extras[0], p.q_rope);
  rotated(args.extras[1], p.k_rope);
  for (const int side : {1, 2}) args.extras[side].cached = 1, args.extras[side].pages = args.token.pages;

  for (int64_t i = 0; i < p.num_groups; ++i) {
    const HeadGroup group = group_of(p, i);
    TensorArgs<int64_t>& tensor = args.tensors[3 + i];
    TensorExtras& extras = args.extras[3 + i];
    steps(extras, head_plan(group, p.rounding), group.rope);
    args.ropes[1 + i] = group.rope;
    extras.rope = static_cast<int32_t>(1 + i);
    if (group.cache.data != nullptr) {
      extras.cached = 1;
      extras.pages = page_divider(group.page_size);
      fill_tensor(tensor, group.in, bits, group.cache, group.num_heads);
      fill_scales(extras, group.cache, p.dtype, kAddStore);
      fill_blocks(extras, group.cache);
      fill_second_output(extras, group.out, bits);
    } else {
      fill_tensor(tensor, group.in, bits, group.out, group.q8_out, group.num_heads);
      fill_scales(extras, group.q8_out, group.num_heads, kAddStore);
    }
  }
  args.num_tensors = static_cast<int32_t>(3 + p.num_groups);
  for (const TensorExtras& extras : args.extras) {
    args.packs |= dtype_bits(extras.store) == 4 ? 1 : 0;
    args.has_blocks |= extras.scale_from == ScaleFrom::blocks ? 1 : 0;
  }
  args.q_scale = p.q_scale;
  args.faults = p.faults;
  args.token_faults = p.token_faults;
}

void fill(const AttentionPrologueParams& p, DescribedArgs& args) {
  fill_tensors<uint32_t>(p, args.tensors);
  fill_second_outputs(p, args.tensors);
  const HeadPlans plans = head_plans(p);
  const auto steps = [](const HeadPlan& plan, DescribedTensor& tensor) {
    tensor.bias = bytes_of(plan.bias);
    tensor.weight = bytes_of(plan.norm.weight);
    tensor.norm_bias = bytes_of(plan.norm.bias);
    tensor.weight_head = bytes_of<uint32_t>(plan.norm.weight_head_stride, dtype_bits(plan.norm.weight_type));
    tensor.eps = plan.norm.eps;
    tensor.weight_offset = plan.norm.weight_offset;
    tensor.inverse_count = plan.inverse_count;
    tensor.hadamard_factor = plan.hadamard_factor;
    tensor.constant = plan.constant;
  };
  steps(plans.q, args.tensors[0]);
  steps(plans.k, args.tensors[1]);
  steps(plans.v, args.tensors[2]);
  fill_scales(p, args.tensors, [](DescribedTensor&, DType, KvScaling) {});
  fill_block_scales(args.tensors[1], p.cache.k);
  fill_block_scales(args.tensors[2], p.cache.v);
  const auto rotated = [&](const HeadsView& in, DescribedTensor& tensor) {
    const int64_t bits = dtype_size(p.dtype) * 8;
    tensor.rotated_in = bytes_of(in.data);
    tensor.rotated_token = bytes_of<uint32_t>(in.token_stride, bits);
    tensor.rotated_head = bytes_of<uint32_t>(in.head_stride, bits);
  };
  rotated(p.q_rope, args.tensors[0]);
  rotated(p.k_rope, args.tensors[1]);
  args.token = token_args(p);
  args.positions = bytes_of(args.token.positions.data);
  args.slots = bytes_of(args.token.slots.data);
  args.max_position = static_cast<uint32_t>(args.token.max_position);
  args.num_slots = static_cast<uint32_t>(args.token.num_slots);
  args.pages = args.token.pages;
  args.num_seqs = args.token.sequences.num_seqs;
  args.cu_seqlens_q = args.token.sequences.cu_seqlens_q;
  args.lengths = args.token.sequences.lengths;
  if (p.rope.rotary_dim > 0 && rope_rows_are_given(p.rope.source)) {
    const int64_t bits = dtype_size(p.rope.type) * 8;
    args.cos = bytes_of(p.rope.cos.data);
    args.sin = bytes_of(p.rope.sin.data);
    args.cos_row = bytes_of<uint32_t>(p.rope.cos.row_stride, bits);
    args.sin_row = bytes_of<uint32_t>(p.rope.sin.row_stride, bits);
  }
  args.inv_freq = static_cast<const float*>(p.rope.inv_freq);
  args.attention_factor = static_cast<float>(p.rope.attention_factor);
  args.pair_axis = p.rope.pair_axis;
  args.q_scale = p.q_scale;
  args.faults = p.faults;
  args.token_faults = p.token_faults;
}

}  // namespace prologue::cuda
