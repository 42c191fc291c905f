#include <algorithm>
#include <bit>
#include <initializer_list>
#include <limits>

#include <prologue/kernels/attention_prologue/backends.h>
#include <prologue/kernels/attention_prologue/instances.h>
#include <prologue/kernels/attention_prologue/prologue_instances.cuh>
#include <prologue/kernels/base/cuda_launch.cuh>
#include <prologue/kernels/base/view_checks.h>

namespace prologue::cuda {

namespace {

int64_t ceil_divide(int64_t a, int64_t b) { return (a + b - 1) / b; }

bool has_k(const AttentionPrologueParams& p) { return p.num_kv_heads > 0 && p.k.data != nullptr; }
bool has_v(const AttentionPrologueParams& p) { return p.num_kv_heads > 0 && p.v.data != nullptr; }
bool has_cache(const AttentionPrologueParams& p) {
  return (has_k(p) && p.cache.k.data != nullptr) || (has_v(p) && p.cache.v.data != nullptr);
}
bool derives_slots(const AttentionPrologueParams& p) {
  return p.places.cu_seqlens_q != nullptr && p.places.slot_mapping.data == nullptr && has_cache(p);
}
bool derives_positions(const AttentionPrologueParams& p) {
  return p.places.cu_seqlens_q != nullptr && p.places.positions.data == nullptr;
}
// The norm of Q and K; weights and biases are those of each.
const HeadNorm& norm_of(const AttentionPrologueParams& p) { return p.num_q_heads > 0 ? p.q_norm : p.k_norm; }
bool normed(const AttentionPrologueParams& p) { return norm_of(p).placement != NormPlacement::none; }

// ---- the widest vector ------------------------------------------------------------------------------------------------------

// What must be aligned to a vector: pointers and strides of an array whose elements have `bits`, a vector of V of them
// being moved at most 16 bytes at a time.
struct Alignment {
  int64_t vector;
  bool ok = true;

  int64_t bytes(int64_t bits) const { return std::min<int64_t>(vector * bits / 8, 16); }
  void pointer(const void* data, int64_t bits) {
    if (bytes(bits) > 0) ok = ok && reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(bytes(bits)) == 0;
  }
  void strides(std::initializer_list<int64_t> list) {
    for (const int64_t stride : list) ok = ok && stride % vector == 0;
  }
  void heads(const HeadsView& view, int64_t bits) {
    if (view.data == nullptr) return;
    pointer(view.data, bits);
    strides({view.token_stride, view.head_stride});
  }
  void pages(const PagedHeads& side) {
    if (side.data == nullptr || side.format.type == DType::int4) return;  // int4 is stored byte by byte
    pointer(side.data, dtype_bits(side.format.type));
    strides({side.strides.page, side.strides.token, side.strides.head});
  }
};

bool fits(const AttentionPrologueParams& p, int64_t vector) {
  const int64_t bits = dtype_size(p.dtype) * 8;
  Alignment a = {vector};
  const int64_t rotary = p.rope.rotary_dim;
  a.strides({p.head_dim - rotary, rotary / 2, rotary > 0 ? p.rope.rotary_offset : 0});
  if (normed(p)) {
    a.strides({p.head_dim / 2});
    for (const void* values : {p.q_norm.weight, p.k_norm.weight, p.q_norm.bias, p.k_norm.bias}) a.pointer(values, bits);
    a.strides({p.q_norm.weight_head_stride, p.k_norm.weight_head_stride});
  }
  if (p.num_q_heads > 0) {
    a.heads(p.q, bits);
    a.heads(as_input(p.q_out), bits);
    a.pointer(p.bias.q, bits);
    if (p.q8_out.data != nullptr) {
      a.pointer(p.q8_out.data, 8);
      a.strides({p.q8_out.token_stride, p.q8_out.head_stride});
    }
  }
  if (has_k(p)) {
    a.heads(p.k, bits);
    a.heads(as_input(p.k_out), bits);
    a.pointer(p.bias.k, bits);
    a.pages(p.cache.k);
  }
  if (has_v(p)) {
    a.strides({v_head_dim(p)});
    if (p.v_norm.placement != NormPlacement::none) a.strides({v_head_dim(p) / 2});
    a.heads(p.v, bits);
    a.heads(as_input(p.v_out), bits);
    a.pointer(p.bias.v, bits);
    a.pages(p.cache.v);
  }
  if (rotary > 0 && p.rope.source != RopeSource::inv_freq) a.pointer(p.rope.cos.data, 32);
  return a.ok;
}

int64_t widest_vector(const AttentionPrologueParams& p) {
  int64_t vector = 16 / dtype_size(p.dtype);
  while (vector > 1 && !fits(p, vector)) vector /= 2;
  return vector;
}

// ---- what a lean instance must be able to do --------------------------------------------------------------------------------

constexpr int64_t kMost = std::numeric_limits<uint32_t>::max();
constexpr int64_t kMaxBlocksOfToken = 65535;  // blockIdx.y

bool whole_heads(const AttentionPrologueParams& p) {
  return p.rope.rotary_dim == 0 || (p.rope.rotary_dim == p.head_dim && p.rope.style == RopeStyle::neox);
}

// Every byte offset that a lean kernel forms in 32 bits fits.
bool fits_32_bits(const AttentionPrologueParams& p) {
  for (const int64_t stride : {p.q.token_stride, p.k.token_stride, p.v.token_stride, p.q_out.token_stride, p.q8_out.token_stride,
                               p.cache.k.strides.page, p.cache.k.strides.token, p.cache.v.strides.page, p.cache.v.strides.token,
                               p.cache.k.scale_strides.page, p.cache.k.scale_strides.token, p.cache.v.scale_strides.page,
                               p.cache.v.scale_strides.token, p.places.block_table_stride}) {
    if (stride > kMost / 4) return false;
  }
  const int64_t heads = std::max<int64_t>({p.num_q_heads, p.num_kv_heads, 1});
  for (const int64_t stride :
       {p.q.head_stride, p.k.head_stride, p.v.head_stride, p.q_out.head_stride, p.q8_out.head_stride, p.cache.k.strides.head,
        p.cache.v.strides.head, p.cache.k.scale_strides.head, p.cache.v.scale_strides.head, p.head_dim}) {
    if (stride > kMost / 4 / heads) return false;
  }
  return !(has_cache(p) && num_slots(p.cache) > kMost / 2) && p.rope.max_position <= kMost / 2;
}

// True if the call needs nothing that only the general kernel can do.
bool plain(const AttentionPrologueParams& p) {
  const Rope& r = p.rope;
  const bool scaled = p.q_scale.constant != 1.0f || p.q_scale.by_position != PositionScale::none;
  const bool both_outputs = p.k_out.data != nullptr || p.v_out.data != nullptr;
  if (p.num_q_heads + 2 * p.num_kv_heads > kMaxBlocksOfToken) return false;
  const bool no_cache = (has_k(p) && p.cache.k.data == nullptr) || (has_v(p) && p.cache.v.data == nullptr);
  if (p.rounding != Rounding::once || scaled || p.v_norm.placement != NormPlacement::none || both_outputs || no_cache) return false;
  if (r.inverse || (r.rotary_dim > 0 && r.source == RopeSource::inv_freq)) return false;
  if (r.past_table == PastTable::identity && r.max_position > 0) return false;
  return !has_v(p) || v_head_dim(p) == p.head_dim;
}

// The features that a scaling asks for.
int scales_of(KvScaling scaling) { return scaling == KvScaling::token_head ? kComputedScales : kGivenScales; }

// What a lean instance has to have (prologue_args.cuh), or -1 where only the general kernel will do. `vector`: channels in one
// access.
int features_of(const AttentionPrologueParams& p, int64_t vector) {
  if (!plain(p) || !fits_32_bits(p)) return -1;
  const auto q_and_k_have = [&](const void* q, const void* k) {
    return (p.num_q_heads == 0 || q != nullptr) && (!has_k(p) || k != nullptr);
  };
  int features = 0;
  if (!whole_heads(p) || (p.head_dim / 2) % vector != 0) features |= kLayouts;
  if (p.bias.q != nullptr || p.bias.k != nullptr || p.bias.v != nullptr) {
    if (!q_and_k_have(p.bias.q, p.bias.k) || (has_v(p) && p.bias.v == nullptr)) return -1;
    features |= kBias;
  }
  if (normed(p)) {
    const HeadNorm& n = norm_of(p);
    if (n.placement != NormPlacement::before_rope || n.kind != NormKind::rms || n.scope != NormScope::head) return -1;
    if ((features & kLayouts) != 0 || !q_and_k_have(p.q_norm.weight, p.k_norm.weight)) return -1;
    if (p.q_norm.weight_head_stride != 0 || p.k_norm.weight_head_stride != 0) return -1;
    if (p.num_q_heads == 0 && !has_k(p)) return -1;
    features |= kNorm;
  }
  if (p.q8_out.data != nullptr) features |= scales_of(p.q8_out.scaling);
  const auto store = [&](const PagedHeads& side) {
    if (side.format.type == p.dtype) return true;
    features |= scales_of(side.format.scaling);
    return dtype_bits(side.format.type) == 8;
  };
  if ((has_k(p) && !store(p.cache.k)) || (has_v(p) && !store(p.cache.v))) return -1;
  if (derives_positions(p) != derives_slots(p) && has_cache(p)) return -1;
  if (derives_slots(p)) {
    const TokenPlaces& places = p.places;
    if (places.ring_size > 0 || places.position_offsets.data != nullptr) return -1;
    if (places.num_seqs < 1 || places.max_pages_per_seq < 1) return -1;
    features |= kDerived;
  } else if (derives_positions(p)) {
    return -1;
  } else if (p.rope.num_axes > 1) {
    const uint8_t* axes = p.rope.pair_axis;
    if (p.rope.rotary_dim == 0 || axes == nullptr || p.rope.source != RopeSource::table) return -1;
    if (reinterpret_cast<uintptr_t>(axes) % static_cast<uintptr_t>(vector) != 0) return -1;
    features |= kStreams;
  }
  if (!has_steps(features)) {
    if (p.rope.rotary_dim == 0) features |= kLayouts;
    if (p.rope.rotary_dim > 0 && p.rope.source == RopeSource::per_token) features |= kPerToken;
  }
  return features;
}

// ---- arguments --------------------------------------------------------------------------------------------------------------

template <class Stride>
Stride bytes_of(int64_t elements, int64_t bits) {
  return static_cast<Stride>(elements * bits / 8);
}

const char* bytes_of(const void* data) { return static_cast<const char*>(data); }
uint32_t step_of(const IndexView& view) { return view.type == DType::int64 ? 8 : 4; }

template <class Stride, class Tensor>
void fill_core(const AttentionPrologueParams& p, CoreArgs<Stride, Tensor>& args) {
  const int64_t bits = dtype_size(p.dtype) * 8;
  args.positions = bytes_of(p.places.positions.data);
  args.position_step = step_of(p.places.positions);
  if (has_cache(p)) {
    args.slots = bytes_of(p.places.slot_mapping.data);
    args.slot_step = step_of(p.places.slot_mapping);
    args.num_slots = static_cast<Stride>(num_slots(p.cache));
    args.page_size = static_cast<uint32_t>(p.cache.page_size);
    const int ceil_log2 = std::bit_width(args.page_size - 1);
    args.page_shift = static_cast<uint32_t>(31 + ceil_log2);
    args.page_magic = static_cast<uint32_t>(((uint64_t{1} << args.page_shift) + args.page_size - 1) / args.page_size);
  }
  args.cos_sin = static_cast<const float*>(p.rope.cos.data);
  args.max_position = static_cast<Stride>(p.rope.max_position);
  args.layout = {static_cast<int32_t>(p.head_dim), static_cast<int32_t>(p.rope.rotary_dim),
                 static_cast<int32_t>(p.rope.rotary_dim > 0 ? p.rope.rotary_offset : 0), p.rope.style};
  args.row_is_token = p.rope.source == RopeSource::per_token ? 1 : 0;
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
    fill(args.tensors[0], p.q, p.q8_out.data, {0, p.q8_out.token_stride, p.q8_out.head_stride}, 8, p.num_q_heads);
  } else {
    fill(args.tensors[0], p.q, p.q_out.data, {0, p.q_out.token_stride, p.q_out.head_stride}, bits, p.num_q_heads);
  }
  const auto fill_side = [&](TensorArgs<Stride>& tensor, const HeadsView& in, const PagedHeads& side) {
    fill(tensor, in, side.data, side.strides, dtype_bits(side.format.type), p.num_kv_heads);
  };
  if (has_k(p)) fill_side(args.tensors[1], p.k, p.cache.k);
  if (has_v(p)) fill_side(args.tensors[2], p.v, p.cache.v);
  args.faults = p.faults;
  args.token_faults = p.token_faults;
}

void fill_steps(const AttentionPrologueParams& p, int features, LeanArgs& args) {
  args.features = features;
  LeanTensor &q = args.tensors[0], &k = args.tensors[1], &v = args.tensors[2];
  q.bias = bytes_of(p.bias.q);
  k.bias = bytes_of(p.bias.k);
  v.bias = bytes_of(p.bias.v);

  q.weight = bytes_of(p.q_norm.weight);
  k.weight = bytes_of(p.k_norm.weight);
  v.weight = q.heads > 0 ? q.weight : k.weight;  // read, but not used
  for (LeanTensor* tensor : {&q, &k}) {
    tensor->eps = norm_of(p).eps;
    tensor->weight_offset = norm_of(p).weight_offset;
    tensor->inverse_count = 1.0f / static_cast<float>(p.head_dim);
  }

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
    scale(q, DType::fp8_e4m3, p.q8_out.scaling, p.q8_out.scale, {0, p.num_q_heads, 1});
  }
  const auto scale_side = [&](LeanTensor& tensor, const PagedHeads& side) {
    if (side.format.type != p.dtype) scale(tensor, side.format.type, side.format.scaling, side.scale, side.scale_strides);
  };
  if (has_k(p)) scale_side(k, p.cache.k);
  if (has_v(p)) scale_side(v, p.cache.v);

  const TokenPlaces& t = p.places;
  args.streams.pair_axis = p.rope.pair_axis;
  for (int64_t axis = 1; axis < p.rope.num_axes; ++axis) {
    args.streams.offset[axis - 1] = axis * t.position_axis_stride * step_of(t.positions);
  }
  args.sequences = {static_cast<int32_t>(t.num_seqs), t.cu_seqlens_q, t.cache_lens};
  args.page_table = {t.block_table, static_cast<uint32_t>(t.block_table_stride),
                     static_cast<uint32_t>(std::min(t.max_pages_per_seq * p.cache.page_size, kMost / 2)),
                     static_cast<uint32_t>(p.cache.num_pages)};
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

void fill_extras(const AttentionPrologueParams& p, int64_t vector, GeneralArgs& args) {
  const int64_t bits = dtype_size(p.dtype) * 8;
  TensorExtras& q = args.extras[0];
  TensorExtras& k = args.extras[1];
  TensorExtras& v = args.extras[2];
  q.bias = bytes_of(p.bias.q);
  k.bias = bytes_of(p.bias.k);
  v.bias = bytes_of(p.bias.v);

  const auto norm = [&](TensorExtras& extras, const HeadNorm& n, int64_t heads, int64_t head_dim) {
    if (n.placement == NormPlacement::none) return;
    extras.norm = n.placement == NormPlacement::before_rope ? NormStep::before_rope : NormStep::after_rope;
    extras.norm_kind = n.kind;
    extras.norm_scope = n.scope;
    extras.eps = n.eps;
    extras.weight_offset = n.weight_offset;
    extras.inverse_count = 1.0f / static_cast<float>(n.scope == NormScope::token ? heads * head_dim : head_dim);
    extras.weight = bytes_of(n.weight);
    extras.norm_bias = bytes_of(n.bias);
    extras.weight_head = bytes_of<int64_t>(n.weight_head_stride, bits);
  };
  norm(q, p.q_norm, p.num_q_heads, p.head_dim);
  norm(k, p.k_norm, p.num_kv_heads, p.head_dim);
  norm(v, p.v_norm, p.num_kv_heads, v_head_dim(p));

  const auto layout = [&](TensorExtras& extras, int64_t head_dim, bool turns) {
    extras.turns = turns ? 1 : 0;
    const bool halves = (head_dim / 2) % vector == 0;
    extras.layout = {static_cast<int32_t>(head_dim), static_cast<int32_t>(halves ? head_dim : 0), 0, RopeStyle::neox};
    if (turns) extras.layout = args.layout;
  };
  layout(q, p.head_dim, p.rope.rotary_dim > 0);
  layout(k, p.head_dim, p.rope.rotary_dim > 0);
  layout(v, v_head_dim(p), false);

  k.second_out = static_cast<char*>(p.k_out.data);
  k.second_token = bytes_of<int64_t>(p.k_out.token_stride, bits);
  k.second_head = bytes_of<int64_t>(p.k_out.head_stride, bits);
  v.second_out = static_cast<char*>(p.v_out.data);
  v.second_token = bytes_of<int64_t>(p.v_out.token_stride, bits);
  v.second_head = bytes_of<int64_t>(p.v_out.head_stride, bits);

  if (p.q8_out.data != nullptr) {
    q.store = DType::fp8_e4m3;
    fill_scale(q, p.q8_out.scaling, p.q8_out.scale, {0, p.num_q_heads, 1});
  }
  const auto store = [&](TensorExtras& extras, const PagedHeads& side) {
    if (side.format.type != p.dtype) extras.store = side.format.type;
    if (dtype_is_quantized(side.format.type)) fill_scale(extras, side.format.scaling, side.scale, side.scale_strides);
  };
  if (has_cache(p)) {
    store(k, p.cache.k);
    store(v, p.cache.v);
  }

  PlaceExtras& places = args.places;
  const TokenPlaces& t = p.places;
  places.position_axis_stride = t.position_axis_stride;
  places.pair_axis = p.rope.num_axes > 1 ? p.rope.pair_axis : nullptr;
  places.num_axes = static_cast<int32_t>(t.positions.data == nullptr ? 1 : p.rope.num_axes);
  places.derive_position = derives_positions(p) ? 1 : 0;
  places.derive_slot = derives_slots(p) ? 1 : 0;
  if (derives_positions(p) || derives_slots(p)) {
    places.sequences = {static_cast<int32_t>(t.num_seqs), t.cu_seqlens_q, t.cache_lens};
    places.block_table = t.block_table;
    places.block_table_stride = t.block_table_stride;
    places.max_pages_per_seq = t.max_pages_per_seq;
    places.num_pages = p.cache.num_pages;
    places.ring_size = t.ring_size;
    places.position_offsets = t.position_offsets;
    places.position_offset_per_seq = t.position_offset_per_seq;
  }
  places.identity_past_table = p.rope.past_table == PastTable::identity ? 1 : 0;
  places.source = p.rope.source;
  places.inv_freq = static_cast<const float*>(p.rope.inv_freq);
  places.attention_factor = static_cast<float>(p.rope.attention_factor);
  places.inverse = p.rope.inverse;
  args.q_scale = p.q_scale;
  args.rounds_per_step = p.rounding == Rounding::per_step ? 1 : 0;
}

// ---- launches ---------------------------------------------------------------------------------------------------------------

constexpr const char* kName = "attention_prologue";

int64_t units_of_all(const AttentionPrologueParams& p, int64_t vector) {
  const int64_t qk = units_of({static_cast<int32_t>(p.head_dim), static_cast<int32_t>(p.rope.rotary_dim)}, vector);
  return std::max(qk, has_v(p) ? ceil_divide(v_head_dim(p), 2 * vector) : 0);
}

int64_t padded_lanes(int64_t units) { return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(units))); }

// Rows of a block such that its warps are full.
int64_t fill_warps(int64_t rows, int64_t lanes) { return lanes >= 32 ? rows : ceil_divide(rows, 32 / lanes) * (32 / lanes); }

// Rows of a block, and blocks of a token: a block keeps to one tensor where a thread has one head; else a block holds as much of
// the token as it can. The heads of a plain thread are far apart; those of another are neighbours of one tensor, and where warps
// are full a warp keeps to one tensor too.
struct Rows {
  int64_t per_block;
  int64_t blocks;
};

template <class Args>
Rows place_rows(const Instance& instance, bool pads, int64_t lanes, Args& args) {
  const int64_t max_rows = std::max<int64_t>(instance.threads / lanes, 1);
  const int64_t heads[3] = {args.tensors[0].heads, args.tensors[1].heads, args.tensors[2].heads};
  // Rows past the last head, which come from rounding up, read the last head of the last tensor and store nothing. That tensor
  // must exist: one without heads, and with none behind it, begins at no row.
  constexpr uint32_t kNowhere = std::numeric_limits<uint32_t>::max();
  const auto begin_at = [&](const auto& count) {
    const int64_t q = count(heads[0]), k = count(heads[1]), v = count(heads[2]);
    args.k_begin = k + v > 0 ? static_cast<uint32_t>(q) : kNowhere;
    args.v_begin = v > 0 ? static_cast<uint32_t>(q + k) : kNowhere;
    return q + k + v;
  };
  if (instance.units == 1) {
    int64_t rows = std::min(max_rows, std::max({heads[0], heads[1], heads[2]}));
    if (pads) rows = fill_warps(rows, lanes);
    return {rows, begin_at([&](int64_t n) { return ceil_divide(n, rows); })};
  }
  if (instance.plain != nullptr) {
    const int64_t all = heads[0] + heads[1] + heads[2], blocks = ceil_divide(all, max_rows * instance.units);
    return {ceil_divide(all, blocks * instance.units), blocks};
  }
  const int64_t all = begin_at([&](int64_t n) {
    const int64_t rows = ceil_divide(n, instance.units);
    return pads ? fill_warps(rows, lanes) : rows;
  });
  const int64_t blocks = ceil_divide(all, max_rows), rows = ceil_divide(all, blocks);
  return {pads ? fill_warps(rows, lanes) : rows, blocks};
}

// Arguments that every lean kernel needs, and the launch that goes with them. A lean kernel reads both index arrays: where there
// are none any address will do.
template <class Args>
LaunchShape prepare(const Instance& instance, int features, const AttentionPrologueParams& p, Args& args) {
  fill_core(p, args);
  if (args.positions == nullptr) {
    const auto& tensor = args.tensors[args.tensors[0].heads > 0 ? 0 : args.tensors[1].heads > 0 ? 1 : 2];
    args.positions = tensor.in, args.position_step = 0;
    if ((features & kDerived) == 0) args.max_position = 0;
  }
  if (args.slots == nullptr) {
    args.slots = args.positions, args.slot_step = args.position_step;
    if (features == 0) args.num_slots = std::numeric_limits<uint32_t>::max();
  }
  const bool pads = padded(features);
  const int64_t units = units_of_all(p, instance.vector), lanes = pads ? padded_lanes(units) : units;
  const Rows rows = place_rows(instance, pads, lanes, args);
  return {dim3(static_cast<unsigned>(p.num_tokens), static_cast<unsigned>(rows.blocks)),
          dim3(static_cast<unsigned>(lanes), static_cast<unsigned>(rows.per_block))};
}

Status launch_lean(const Family& family, const Instance& instance, const AttentionPrologueParams& p, cudaStream_t stream) {
  if (instance.plain != nullptr) {
    PlainArgs args;
    const LaunchShape shape = prepare(instance, family.features, p, args);
    return launch(kName, instance.plain, shape, stream, args);
  }
  LeanArgs args;
  const LaunchShape shape = prepare(instance, family.features, p, args);
  fill_steps(p, features_of(p, family.vector), args);
  return launch(kName, instance.lean, shape, stream, args);
}

Status launch_general(const Family& instance, const AttentionPrologueParams& p, cudaStream_t stream) {
  GeneralArgs args;
  fill_core(p, args);
  fill_extras(p, instance.vector, args);
  const int64_t lanes = padded_lanes(units_of_all(p, instance.vector));
  const int64_t all = args.tensors[0].heads + args.tensors[1].heads + args.tensors[2].heads;
  const bool over_token = normed(p) && norm_of(p).scope == NormScope::token;
  const int64_t max_rows = lanes > 32 ? 1 : (over_token ? 256 : 128) / lanes;
  const int64_t rows = fill_warps(std::min(max_rows, all), lanes);
  const int64_t blocks = over_token ? 1 : std::min(ceil_divide(all, rows), kMaxBlocksOfToken);
  const LaunchShape shape = {dim3(static_cast<unsigned>(p.num_tokens), static_cast<unsigned>(blocks)),
                             dim3(static_cast<unsigned>(lanes), static_cast<unsigned>(rows))};
  return launch(kName, instance.general, shape, stream, args);
}

std::span<const Family> families_of(DType type) {
  switch (type) {
    case DType::f16: return float16_families();
    case DType::bf16: return bfloat16_families();
    case DType::f32: break;
  }
  return float32_families();
}

// The lanes of a head fit a block. Those that work together are of one warp, and enough that each has a half of a head of its
// thread to sum up.
bool lanes_fit(const AttentionPrologueParams& p, int features, const Instance& instance) {
  const int64_t units = units_of_all(p, instance.vector);
  if (!padded(features)) return units <= instance.threads;
  return units <= 32 && padded_lanes(units) >= 2 * instance.units;
}

// Whether a family can run a call: its features are exactly those of the call, or it runs any mixture of steps. `vector`: the
// widest that the data allow.
bool serves(const Family& family, int64_t vector, const AttentionPrologueParams& p) {
  if (family.vector > vector) return false;
  if (family.general != nullptr) return true;
  const int features = features_of(p, family.vector);
  if (features < 0 || !lanes_fit(p, family.features, family.instances.back())) return false;
  if ((family.features & kAnySteps) != 0) {
    constexpr int kFixed = kLayouts | kStreams | kDerived;
    return (features & kFixed) == (family.features & kFixed);
  }
  return (features | kLayouts) == (family.features | kLayouts) && (features & ~family.features) == 0;
}

// The first that can do it, with vectors as wide as the data allow.
const Family* find_family(const AttentionPrologueParams& p) {
  const int64_t vector = widest_vector(p);
  for (const Family& family : families_of(p.dtype)) {
    if (serves(family, vector, p)) return &family;
  }
  return nullptr;
}

Status launch_family(const Family& family, const AttentionPrologueParams& p, cudaStream_t stream) {
  if (family.general != nullptr) return launch_general(family, p, stream);
  const Instance* instance = family.instances.data();
  while (p.num_tokens > instance->max_tokens || !lanes_fit(p, family.features, *instance)) ++instance;
  return launch_lean(family, *instance, p, stream);
}

std::string family_name(const Family& family) {
  if (family.general != nullptr) return str_cat(dtype_name(family.dtype), " general, ", family.vector, " channels");
  constexpr const char* kNames[] = {"layouts", "bias",    "norm",      "given_scales", "computed_scales",
                                    "streams", "derived", "per_token", "any_steps"};
  std::string features;
  for (size_t i = 0; i < std::size(kNames); ++i) {
    if ((family.features >> i & 1) != 0) features += str_cat(features.empty() ? "" : "+", kNames[i]);
  }
  return str_cat(dtype_name(family.dtype), " lean ", features.empty() ? "plain" : features);
}

std::string instance_name(const Family& family, const Instance& instance) {
  const std::string limit = instance.max_tokens == kAnyTokens ? "any number of" : str_cat("up to ", instance.max_tokens);
  return str_cat(family_name(family), ", ", instance.vector, " channels, ", instance.units, " heads a thread, ", limit,
                 " tokens");
}

}  // namespace

std::vector<KernelInstance<AttentionPrologueParams>> instances_of(const AttentionPrologueParams& unresolved) {
  const auto resolve = [](AttentionPrologueParams p) {
    p.cache = resolved(p.cache, p.dtype);
    return p;
  };
  const AttentionPrologueParams params = resolve(unresolved);
  std::vector<KernelInstance<AttentionPrologueParams>> list;
  const int64_t vector = widest_vector(params);
  for (const Family& family : families_of(params.dtype)) {
    if (!serves(family, vector, params)) continue;
    if (family.general != nullptr) {
      list.push_back({family_name(family), kAnyTokens, [&family, resolve](const AttentionPrologueParams& p, cudaStream_t stream) {
                        return launch_general(family, resolve(p), stream);
                      }});
    }
    for (const Instance& instance : family.instances) {
      if (!lanes_fit(params, family.features, instance)) continue;
      list.push_back({instance_name(family, instance), instance.max_tokens,
                      [&family, &instance, resolve](const AttentionPrologueParams& p, cudaStream_t stream) {
                        return launch_lean(family, instance, resolve(p), stream);
                      }});
    }
  }
  return list;
}

std::vector<std::string> attention_prologue_instances() {
  std::vector<std::string> names;
  for (const DType type : {DType::f32, DType::f16, DType::bf16}) {
    for (const Family& family : families_of(type)) {
      if (family.general != nullptr) names.push_back(family_name(family));
      for (const Instance& instance : family.instances) names.push_back(instance_name(family, instance));
    }
  }
  return names;
}

Result<const void*> plan_attention_prologue(const AttentionPrologueParams& params) {
  const Family* family = find_family(params);
  if (family == nullptr) {
    return unsupported("attention_prologue: no CUDA kernel for ", dtype_name(params.dtype), " at this alignment");
  }
  return static_cast<const void*>(family);
}

const char* kernel_of_plan(const void* plan) { return static_cast<const Family*>(plan)->general == nullptr ? "lean" : "general"; }

Status run_plan(const void* plan, const AttentionPrologueParams& params, const Execution& execution) {
  if (params.num_q_heads == 0 && !has_k(params) && !has_v(params)) return {};
  return launch_family(*static_cast<const Family*>(plan), params, execution.stream);
}

Status attention_prologue(const AttentionPrologueParams& params, const Execution& execution) {
  const Result<const void*> plan = plan_attention_prologue(params);
  return plan.ok() ? run_plan(*plan, params, execution) : plan.status();
}

}  // namespace prologue::cuda
