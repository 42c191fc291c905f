#include <prologue/kernels/attention_prologue/prologue_args.h>

#include <algorithm>
#include <limits>

#include <prologue/kernels/attention_prologue/prologue_choice.h>

namespace prologue::cuda {

namespace {

template <class Stride>
Stride bytes_of(int64_t elements, int64_t bits) {
  return static_cast<Stride>(elements * bits / 8);
}

const char* bytes_of(const void* data) { return static_cast<const char*>(data); }
uint32_t step_of(const IndexView& view) { return view.type == DType::int64 ? 8 : 4; }

HeadLayout layout_of(const AttentionPrologueParams& p) {
  return {static_cast<int32_t>(p.head_dim), static_cast<int32_t>(p.rope.rotary_dim),
          static_cast<int32_t>(p.rope.rotary_dim > 0 ? p.rope.rotary_offset : 0), p.rope.style};
}

BlockLayout block_layout_of(const AttentionPrologueParams& p) {
  return {layout_of(p), static_cast<int32_t>(p.rope.rotary_dim > 0 ? p.rope.num_blocks : 1)};
}

template <class Stride, class Tensor>
void fill_tensors(const AttentionPrologueParams& p, Tensor (&tensors)[3]) {
  const int64_t bits = dtype_size(p.dtype) * 8;
  const auto fill = [&](TensorArgs<Stride>& tensor, const HeadsView& in, void* out, const PageStrides& out_strides,
                        int64_t out_bits, int64_t heads) {
    tensor.in = bytes_of(in.data);
    tensor.in_token = bytes_of<Stride>(in.token_stride, bits);
    tensor.in_head = bytes_of<Stride>(in.head_stride, bits);
    tensor.out = static_cast<char*>(out);
    tensor.out_page = bytes_of<Stride>(out_strides.page, out_bits);
    tensor.out_token = bytes_of<Stride>(out_strides.token, out_bits);
    tensor.out_head = bytes_of<Stride>(out_strides.head, out_bits);
    tensor.heads = static_cast<int32_t>(heads);
  };
  if (p.q8_out.data != nullptr) {
    fill(tensors[0], p.q, p.q8_out.data, {0, p.q8_out.token_stride, p.q8_out.head_stride}, 8, p.num_q_heads);
  } else {
    fill(tensors[0], p.q, p.q_out.data, {0, p.q_out.token_stride, p.q_out.head_stride}, bits, p.num_q_heads);
  }
  const auto fill_side = [&](TensorArgs<Stride>& tensor, const HeadsView& in, const PagedHeads& side) {
    fill(tensor, in, side.data, side.strides, dtype_bits(side.format.type), p.num_kv_heads);
  };
  if (has_k(p)) fill_side(tensors[1], p.k, p.cache.k);
  if (has_v(p)) fill_side(tensors[2], p.v, p.cache.v);
}

// What all lean kernels need. They read both index arrays and the table: where there are none any address will do.
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
  args.layout = layout_of(p);
  args.row_is_token = p.rope.source == RopeSource::per_token ? 1 : 0;
  args.faults = p.faults;
  args.token_faults = p.token_faults;
  const char* any = args.tensors[args.tensors[0].heads > 0 ? 0 : args.tensors[1].heads > 0 ? 1 : 2].in;
  if (args.positions == nullptr) args.positions = any, args.position_step = 0;
  if (p.rope.rotary_dim == 0) args.cos_sin = reinterpret_cast<const float*>(any);  // rows of no bytes: a head has enough to read
  if (args.slots == nullptr) args.slots = args.positions, args.slot_step = args.position_step;
}

void fill_scale(TensorExtras& extras, KvScaling scaling, float* scale, const PageStrides& computed_strides) {
  extras.scale = reinterpret_cast<char*>(scale);
  if (scaling == KvScaling::none) {
    extras.scale_from = ScaleFrom::nothing;
  } else if (scaling == KvScaling::token_head) {
    extras.scale_from = ScaleFrom::computed;
    extras.scale_page = bytes_of<int64_t>(computed_strides.page, 32);
    extras.scale_token = bytes_of<int64_t>(computed_strides.token, 32);
    extras.scale_head = bytes_of<int64_t>(computed_strides.head, 32);
  } else {
    extras.scale_from = ScaleFrom::given;
    extras.scale_head = scaling == KvScaling::head ? 4 : 0;
  }
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
  fill_core(p, args);
  if (p.places.positions.data == nullptr && (features & kDerived) == 0) args.max_position = 0;
  args.features = features;
  LeanTensor &q = args.tensors[0], &k = args.tensors[1], &v = args.tensors[2];
  q.bias = bytes_of(p.bias.q);
  k.bias = bytes_of(p.bias.k);
  v.bias = bytes_of(p.bias.v);

  q.weight = bytes_of(p.q_norm.weight);
  k.weight = bytes_of(p.k_norm.weight);
  v.weight = q.heads > 0 ? q.weight : k.weight;  // read, but not used
  const auto norm = [&](LeanTensor& tensor, const HeadNorm& n) {
    tensor.eps = n.eps;
    tensor.weight_offset = n.weight_offset;
    tensor.inverse_count = 1.0f / static_cast<float>(p.head_dim);
  };
  norm(q, p.q_norm);
  norm(k, p.k_norm);

  for (LeanTensor& tensor : args.tensors) tensor.scale = const_cast<char*>(tensor.in);  // read, but not used
  const auto scale = [](LeanTensor& tensor, DType type, KvScaling scaling, float* scales, const PageStrides& strides) {
    tensor.store = type;
    if (scaling == KvScaling::none) return;
    tensor.scale = reinterpret_cast<char*>(scales);
    tensor.scale_from = scaling == KvScaling::token_head ? ScaleFrom::computed : ScaleFrom::given;
    if (scaling == KvScaling::token_head) {
      tensor.scale_page = bytes_of<uint32_t>(strides.page, 32);
      tensor.scale_token = bytes_of<uint32_t>(strides.token, 32);
      tensor.scale_head = bytes_of<uint32_t>(strides.head, 32);
    } else if (scaling == KvScaling::head) {
      tensor.scale_head = 4;
    }
  };
  if (p.q8_out.data != nullptr) {
    scale(q, p.q8_out.type, p.q8_out.scaling, p.q8_out.scale, {0, p.num_q_heads, 1});
  }
  const auto scale_side = [&](LeanTensor& tensor, const PagedHeads& side) {
    if (side.format.type != p.dtype) scale(tensor, side.format.type, side.format.scaling, side.scale, side.scale_strides);
  };
  if (has_k(p)) scale_side(k, p.cache.k);
  if (has_v(p)) scale_side(v, p.cache.v);

  const TokenPlaces& t = p.places;
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

void fill(const AttentionPrologueParams& p, int features, MoreArgs& args) {
  fill(p, features, static_cast<LeanArgs&>(args));
  const int64_t bits = dtype_size(p.dtype) * 8;
  const auto more = [&](LeanTensor& tensor, MoreTensor& extra, const HeadNorm& norm, const MutableHeadsView& second) {
    const int64_t weight_bits = dtype_bits(norm.weight_type);
    tensor.weight = bytes_of(norm.weight);
    tensor.eps = norm.eps;
    tensor.weight_offset = norm.weight_offset;
    const int64_t heads = norm.scope == NormScope::token ? tensor.heads : 1;
    tensor.inverse_count = 1.0f / static_cast<float>(heads * p.head_dim);
    extra.norm = norm.placement;
    extra.kind = norm.kind;
    extra.scope = norm.scope;
    extra.float_weights = weight_bits == 32 ? 1 : 0;
    extra.weight_head = bytes_of<uint32_t>(norm.weight_head_stride, weight_bits);
    extra.norm_bias = bytes_of(norm.bias);
    extra.second_out = static_cast<char*>(second.data);
    extra.second_token = bytes_of<uint32_t>(second.token_stride, bits);
    extra.second_head = bytes_of<uint32_t>(second.head_stride, bits);
  };
  more(args.tensors[0], args.more[0], p.q_norm, {});
  more(args.tensors[1], args.more[1], p.k_norm, p.k_out);
  more(args.tensors[2], args.more[2], p.v_norm, p.v_out);
  for (MoreTensor* rotated : {&args.more[0], &args.more[1]}) {
    rotated->hadamard_block = static_cast<int32_t>(p.hadamard_block);
    rotated->hadamard_factor = hadamard_factor(p.hadamard_block);
  }
  args.rounds = p.rounding == Rounding::per_step ? 1 : 0;
  args.past_table = p.rope.past_table;
  args.q_scale = p.q_scale;
  args.inverse = p.rope.inverse;
  args.ring_size = derives_slots(p) ? static_cast<uint32_t>(p.places.ring_size) : 0;
}

void fill(const AttentionPrologueParams& p, int64_t vector, GeneralArgs& args) {
  fill_tensors<int64_t>(p, args.tensors);
  const int64_t bits = dtype_size(p.dtype) * 8;
  TensorExtras& q = args.extras[0];
  TensorExtras& k = args.extras[1];
  TensorExtras& v = args.extras[2];
  const HeadPlans plans = head_plans(p);
  q.plan = plans.q;
  k.plan = plans.k;
  v.plan = plans.v;

  const auto layout = [&](TensorExtras& extras, int64_t head_dim, bool rotates) {
    extras.rotates = rotates ? 1 : 0;
    const bool halves = (head_dim / 2) % vector == 0;
    extras.layout = {{static_cast<int32_t>(head_dim), static_cast<int32_t>(halves ? head_dim : 0), 0, RopeStyle::neox}, 1};
    if (rotates) extras.layout = block_layout_of(p);
  };
  layout(q, p.head_dim, p.rope.rotary_dim > 0);
  layout(k, p.head_dim, p.rope.rotary_dim > 0);
  layout(v, v_head_dim(p), false);

  const auto rotated = [&](TensorExtras& extras, const HeadsView& in) {
    extras.rotated_in = bytes_of(in.data);
    extras.rotated_token = bytes_of<int64_t>(in.token_stride, bits);
    extras.rotated_head = bytes_of<int64_t>(in.head_stride, bits);
  };
  rotated(q, p.q_rope);
  rotated(k, p.k_rope);

  k.second_out = static_cast<char*>(p.k_out.data);
  k.second_token = bytes_of<int64_t>(p.k_out.token_stride, bits);
  k.second_head = bytes_of<int64_t>(p.k_out.head_stride, bits);
  v.second_out = static_cast<char*>(p.v_out.data);
  v.second_token = bytes_of<int64_t>(p.v_out.token_stride, bits);
  v.second_head = bytes_of<int64_t>(p.v_out.head_stride, bits);

  if (p.q8_out.data != nullptr) {
    q.store = p.q8_out.type;
    fill_scale(q, p.q8_out.scaling, p.q8_out.scale, {0, p.num_q_heads, 1});
  }
  const auto store = [&](TensorExtras& extras, const PagedHeads& side) {
    if (side.format.type != p.dtype) extras.store = side.format.type;
    if (dtype_is_quantized(side.format.type)) fill_scale(extras, side.format.scaling, side.scale, side.scale_strides);
  };
  if (writes_cache(p)) {
    store(k, p.cache.k);
    store(v, p.cache.v);
  }

  args.token = token_args(p);
  args.rope = p.rope;
  args.layout = block_layout_of(p);
  args.q_scale = p.q_scale;
  args.faults = p.faults;
  args.token_faults = p.token_faults;
}

}  // namespace prologue::cuda
