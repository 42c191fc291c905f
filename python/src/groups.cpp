#include "groups.h"

#include <prologue/kernels/base/kv_types.h>

#include <algorithm>

namespace prologue::python {

HeadsView heads_view(const Array& array) {
  if (!array) return {};
  array.require_heads().require_contiguous(2);
  return {array.data(), array.stride(0), array.stride(1)};
}

MutableHeadsView mutable_heads_view(const Array& array) {
  const HeadsView view = heads_view(array);
  return {const_cast<void*>(view.data), view.token_stride, view.head_stride};
}

IndexView index_view_of(const Array& array) {
  if (!array) return {};
  if (!dtype_is_integer(array.dtype())) fail_type(array.name(), " is ", dtype_name(array.dtype()), ": it must be integers");
  return {array.require_dense().data(), array.dtype()};
}

uint8_t* token_faults_of(const Array& array, int64_t num_tokens) {
  if (!array) return nullptr;
  array.require_rank(1, 1).require_size(0, num_tokens, "one for each token").require_dense();
  return array.as<uint8_t>(DType::uint8);
}

namespace {

constexpr int64_t kMaxComputedPosition = int64_t{1} << 20;  // of the prologues

// [rows, columns], or with a row for each token also [batch, seq_len, columns].
RopeColumns columns_of(const Array& array, bool per_token, int64_t batch, int64_t seq_len) {
  array.require_rank(2, per_token ? 3 : 2);
  const int last = array.rank() - 1;
  RopeColumns columns = {array.data(), 0, array.stride(last - 1), array.stride(last)};
  if (!per_token) return columns;
  const auto wrong = [&](const char* rule) {
    fail_value(array.name(), " has the shape ", array.shape_text(), ": for ", batch, " sequences of ", seq_len, " tokens ", rule);
  };
  if (array.rank() == 3) {
    if (array.size(1) != seq_len || (array.size(0) != batch && array.size(0) != 1)) wrong("it must be [batch, seq_len, columns]");
    columns.batch_stride = array.size(0) == 1 ? 0 : array.stride(0);
  } else if (array.size(0) == seq_len) {
    columns.batch_stride = 0;
  } else {
    if (array.size(0) != batch * seq_len) wrong("it must have a row for each token");
    columns.batch_stride = seq_len * columns.row_stride;
  }
  return columns;
}

}  // namespace

Rope read_rope(Arguments& operation, int64_t batch, int64_t seq_len, int64_t head_dim, RopeSources allowed) {
  Rope rope;
  Arguments arguments(operation, "rope");
  if (!arguments) return rope;
  rope.style = arguments.choice<RopeStyle>("style", {{"neox", RopeStyle::neox}, {"interleaved", RopeStyle::interleaved}});
  rope.rotary_dim = arguments.integer("rotary_dim", 0);
  const Array cos = arguments.optional_array("cos"), sin = arguments.optional_array("sin");
  const Array cos_sin = arguments.optional_array("cos_sin");
  const Array angles = arguments.optional_array("angles");
  const Array inv_freq = arguments.optional_array("inv_freq");
  const bool has_theta = arguments.given("theta");
  if (has_theta) rope.theta = arguments.number("theta");
  const RopeWidth given_width = arguments.given("width")
                                    ? arguments.choice<RopeWidth>("width", {{"half", RopeWidth::half}, {"full", RopeWidth::full}})
                                    : RopeWidth::unset;
  const bool per_token = arguments.flag("per_token");
  rope.attention_factor = arguments.number("attention_factor");
  rope.rotary_offset = arguments.integer("rotary_offset");
  rope.num_blocks = arguments.integer("num_blocks");
  rope.inverse = arguments.flag("inverse") ? 1 : 0;
  rope.inverse_by_own_sine = arguments.flag("inverse_by_own_sine") ? 1 : 0;
  rope.max_position = arguments.integer("max_position", 0);
  rope.past_table = arguments.choice<PastTable>(
      "past_table", {{"record", PastTable::record}, {"zero", PastTable::zero}, {"identity", PastTable::identity}});
  rope.num_axes = arguments.integer("num_axes");
  const Array pair_axis = arguments.optional_array("pair_axis");
  arguments.require_all_read();

  const int sources = (cos || sin ? 1 : 0) + (cos_sin ? 1 : 0) + (angles ? 1 : 0) + (inv_freq ? 1 : 0) + (has_theta ? 1 : 0);
  if (sources != 1) {
    fail_value("rope: ", sources, " of cos and sin, cos_sin, angles, inv_freq and theta are given: it must be exactly one");
  }
  if (static_cast<bool>(cos) != static_cast<bool>(sin)) fail_value("rope: only one of cos and sin is given");
  if (allowed == RopeSources::of_prologues) {
    if (has_theta || angles) {
      fail("NotImplementedError", str_cat("rope: ",
                                          has_theta ? "theta is given, which only rotary takes without rotary_dim"
                                                    : "angles is given, which only rotary takes",
                                          ": give cos and sin, cos_sin, or inv_freq in float32"));
    }
    if (inv_freq && inv_freq.dtype() != DType::f32) {
      fail("NotImplementedError",
           str_cat("inv_freq is ", dtype_name(inv_freq.dtype()), ", which only rotary takes: it must be float32"));
    }
    if (inv_freq && rope.max_position == 0) rope.max_position = kMaxComputedPosition;
  }
  if (rope.num_blocks < 1 || rope.num_blocks > 4) fail_value("num_blocks is ", rope.num_blocks, ": it must lie in 1..4");
  if (rope.rotary_dim < 0 || rope.rotary_dim > kMaxHeadDim) {
    fail_value("rotary_dim is ", rope.rotary_dim, ": it must lie in 0..", kMaxHeadDim);
  }

  // The number of columns tells the width, if rotary_dim is given; the width tells rotary_dim, if not.
  const auto set_width = [&](const Array& array, int64_t num_columns) {
    rope.width = given_width;
    if (rope.rotary_dim == 0) {
      const bool too_wide = cos && num_columns * rope.num_blocks * 2 > head_dim && num_columns * rope.num_blocks <= head_dim;
      if (rope.width == RopeWidth::unset) rope.width = too_wide ? RopeWidth::full : RopeWidth::half;
      rope.rotary_dim = num_columns * rope.num_blocks * (rope.width == RopeWidth::half ? 2 : 1);
      return;
    }
    const int64_t width = rope.rotary_dim / rope.num_blocks;
    if (rope.width == RopeWidth::unset) rope.width = num_columns * 2 == width ? RopeWidth::half : RopeWidth::full;
    if (num_columns * (rope.width == RopeWidth::half ? 2 : 1) != width) {
      fail_value(array.name(), " has the shape ", array.shape_text(), ": with rotary_dim ", rope.rotary_dim, " and num_blocks ",
                 rope.num_blocks, " it must have ", width / 2, " columns, or ", width, " if its width is full");
    }
  };
  const auto set_rows = [&](const Array& array) {  // row = position
    if (per_token) return;
    const int64_t rows = array.size(0);
    if (rope.max_position > rows || rope.max_position < 0) {
      fail_value("max_position is ", rope.max_position, ": ", array.name(), " has ", rows, " rows");
    }
    if (rope.max_position == 0) rope.max_position = rows;
  };

  rope.source = per_token ? RopeSource::per_token : RopeSource::table;
  if (cos) {
    sin.require(cos.dtype());
    rope.type = cos.dtype();
    rope.cos = columns_of(cos, per_token, batch, seq_len);
    rope.sin = columns_of(sin, per_token, batch, seq_len);
    if (sin.shape_text() != cos.shape_text()) {
      fail_value("sin has the shape ", sin.shape_text(), ", cos ", cos.shape_text(), ": they must be equal");
    }
    set_width(cos, cos.size(cos.rank() - 1));
    set_rows(cos);
  } else if (cos_sin) {
    rope.type = cos_sin.dtype();
    const int64_t columns = cos_sin.size(cos_sin.rank() - 1);
    if (columns % 2 != 0) fail_value("cos_sin has the shape ", cos_sin.shape_text(), ": its columns are cos, then sin");
    rope.cos = rope.sin = columns_of(cos_sin, per_token, batch, seq_len);
    rope.sin.data = static_cast<const char*>(rope.cos.data) + columns / 2 * rope.cos.column_stride * dtype_size(rope.type);
    set_width(cos_sin, columns / 2);
    set_rows(cos_sin);
  } else if (angles) {
    rope.source = per_token ? RopeSource::angles_per_token : RopeSource::angles;
    rope.type = angles.dtype();
    rope.angles = columns_of(angles, per_token, batch, seq_len);
    set_width(angles, angles.size(angles.rank() - 1));
    set_rows(angles);
  } else {
    if (per_token) fail_value("per_token is True: it is for cos and sin or angles, which this rope does not have");
    rope.width = given_width;
    rope.source = has_theta ? RopeSource::theta : RopeSource::inv_freq;
    if (inv_freq) {
      inv_freq.require_rank(1, 1).require_dense();
      rope.type = inv_freq.dtype();
      rope.inv_freq = inv_freq.data();
      if (rope.rotary_dim == 0) rope.rotary_dim = 2 * rope.num_blocks * inv_freq.size(0);
      if (inv_freq.size(0) * 2 * rope.num_blocks != rope.rotary_dim) {
        fail_value("inv_freq has ", inv_freq.size(0), " elements: with rotary_dim ", rope.rotary_dim, " and num_blocks ",
                   rope.num_blocks, " it must have ", rope.rotary_dim / rope.num_blocks / 2);
      }
    }
  }
  if (allowed == RopeSources::of_prologues && rope.width == RopeWidth::full && (cos || cos_sin)) {
    const bool neox = rope.style == RopeStyle::neox;
    const int64_t pairs = rope.rotary_dim / rope.num_blocks / 2;
    fail("NotImplementedError",
         str_cat("rope: ", cos ? "cos" : "cos_sin", " has a column for each of ", 2 * pairs,
                 " channels, which only rotary takes: if ", neox ? "both halves are" : "both columns of a pair are",
                 " the same, as Hugging Face has them, give cos[..., ", neox ? str_cat(":", pairs) : std::string("::2"),
                 "] and the same of sin"));
  }
  if (pair_axis) {
    pair_axis.require_rank(1, 1).require_size(0, rope.rotary_dim / 2, "one for each pair").require_dense();
    rope.pair_axis = pair_axis.as<uint8_t>(DType::uint8);
  }
  return rope;
}

HeadNorm read_head_norm(Arguments& operation, Name name, int64_t num_heads, int64_t head_dim) {
  HeadNorm norm;
  Arguments arguments(operation, name);
  if (!arguments) return norm;
  norm.placement = arguments.choice<NormPlacement>(
      "placement", {{"before_rope", NormPlacement::before_rope}, {"after_rope", NormPlacement::after_rope}});
  const Array weight = arguments.optional_array("weight", "norm weight"), bias = arguments.optional_array("bias", "norm bias");
  norm.eps = static_cast<float>(arguments.number("eps"));
  norm.kind = arguments.choice<NormKind>("kind", {{"rms", NormKind::rms}, {"layer", NormKind::layer}});
  norm.scope = arguments.choice<NormScope>("scope", {{"head", NormScope::head}, {"token", NormScope::token}});
  norm.weight_offset = static_cast<float>(arguments.number("weight_offset"));
  arguments.require_all_read();
  const auto read = [&](const Array& array) -> const void* {
    if (!array) return nullptr;
    const bool for_all_heads = array.has_shape({head_dim}), of_token = norm.scope == NormScope::token;
    if (!for_all_heads && !array.has_shape({num_heads, head_dim}) && !(of_token && array.has_shape({num_heads * head_dim}))) {
      fail_value(array.name(), " has the shape ", array.shape_text(), ": it must be [", head_dim, "] or [", num_heads, ", ",
                 head_dim, "], or with the scope 'token' also [", num_heads * head_dim, "]");
    }
    array.require_dense();
    norm.weight_head_stride = for_all_heads ? 0 : head_dim;
    norm.weight_type = array.dtype();
    return array.data();
  };
  norm.weight = read(weight);
  norm.bias = read(bias);
  if (weight && bias && (weight.shape_text() != bias.shape_text() || weight.dtype() != bias.dtype())) {
    fail_value("norm bias is ", dtype_name(bias.dtype()), " ", bias.shape_text(), ", norm weight ", dtype_name(weight.dtype()),
               " ", weight.shape_text(), ": they must be alike");
  }
  return norm;
}

PageTable read_page_table(Arguments& operation, int64_t num_seqs) {
  PageTable table;
  Arguments arguments(operation, "page_table");
  if (!arguments) return table;
  const Array block_table = arguments.optional_array("block_table"), indptr = arguments.optional_array("kv_indptr");
  const Array indices = arguments.optional_array("kv_indices"), last = arguments.optional_array("kv_last_page_len");
  arguments.require_all_read();
  if (block_table) {
    block_table.require_rank(2, 2).require_size(0, num_seqs, "one row for each sequence").require_contiguous(1);
    table.block_table = block_table.as<const int32_t>(DType::int32);
    table.block_table_stride = block_table.stride(0);
    table.max_pages_per_seq = num_seqs == 0 ? std::max<int64_t>(block_table.size(1), 1) : block_table.size(1);  // none is read
  }
  if (static_cast<bool>(indptr) != static_cast<bool>(indices)) fail_value("only one of kv_indptr and kv_indices is given");
  if (indptr) {
    indptr.require_rank(1, 1).require_size(0, num_seqs + 1, "one more than sequences").require_dense();
    table.kv_indptr = indptr.as<const int32_t>(DType::int32);
    table.kv_indices = indices.require_rank(1, 1).require_dense().as<const int32_t>(DType::int32);
    table.num_kv_indices = indices.num_elements();
  }
  if (last) {
    last.require_rank(1, 1).require_size(0, num_seqs, "one for each sequence").require_dense();
    table.kv_last_page_len = last.as<const int32_t>(DType::int32);
  }
  return table;
}

TokenPlaces read_token_places(Arguments& operation, int64_t num_tokens, int64_t num_axes) {
  TokenPlaces places;
  Arguments arguments(operation, "places");
  if (!arguments) return places;
  const Array positions = arguments.optional_array("positions");
  if (positions) {
    positions.require_rank(1, 2).require_size(positions.rank() - 1, num_tokens, "one for each token");
    positions.require_contiguous(positions.rank() - 1);
    if (positions.rank() == 2 && positions.size(0) != num_axes && positions.size(0) != 1) {
      fail_value("positions has the shape ", positions.shape_text(), ": num_axes of the rope is ", num_axes);
    }
    places.positions = {positions.data(), positions.dtype()};
    places.position_axis_stride = positions.rank() == 2 && positions.size(0) > 1 ? positions.stride(0) : 0;
  }
  const Array slots = arguments.optional_array("slot_mapping");
  if (slots) {
    places.slot_mapping = index_view_of(slots.require_rank(1, 1));
    places.slot_mapping_len = slots.size(0);
    if (slots.size(0) == num_tokens) places.slot_mapping_len = 0;
    if (slots.size(0) == 0 || slots.size(0) > num_tokens) {
      if (num_tokens > 0)
        fail_value("slot_mapping has ", slots.size(0), " elements: it must have 1 to ", num_tokens, ", the tokens");
    }
  }
  const Array cu_seqlens_q = arguments.optional_array("cu_seqlens_q");
  if (cu_seqlens_q) {
    cu_seqlens_q.require_rank(1, 1).require_dense();
    if (cu_seqlens_q.size(0) < 1) fail_value("cu_seqlens_q is empty: it must have one element more than there are sequences");
    places.num_seqs = cu_seqlens_q.size(0) - 1;
    places.cu_seqlens_q = cu_seqlens_q.as<const int32_t>(DType::int32);
  }
  const auto lengths = [&](Name name) -> const int32_t* {
    const Array array = arguments.optional_array(name);
    if (!array) return nullptr;
    array.require_rank(1, 1).require_size(0, places.num_seqs, "one for each sequence").require_dense();
    return array.as<const int32_t>(DType::int32);
  };
  places.cache_lens = lengths("cache_lens");
  places.seq_lens = lengths("seq_lens");
  places.ring_size = arguments.integer("ring_size");
  const Array offsets = arguments.optional_array("position_offsets");
  if (offsets) {
    offsets.require_rank(1, 1);
    if (offsets.size(0) != 1) offsets.require_size(0, places.num_seqs, "one for each sequence, or one for all");
    places.position_offsets = index_view_of(offsets);
    places.position_offset_per_seq = offsets.size(0) == 1 ? 0 : 1;
  }
  places.page_table = read_page_table(arguments, places.num_seqs);
  arguments.require_all_read();
  return places;
}

QueryScale read_query_scale(Arguments& operation) {
  QueryScale scale;
  Arguments arguments(operation, "q_scale");
  if (!arguments) return scale;
  scale.constant = static_cast<float>(arguments.number("constant"));
  scale.by_position = arguments.choice<PositionScale>(
      "by_position", {{"none", PositionScale::none}, {"llama4", PositionScale::llama4}, {"logn", PositionScale::logn}});
  scale.a = static_cast<float>(arguments.number("a"));
  scale.b = static_cast<float>(arguments.number("b"));
  arguments.require_all_read();
  return scale;
}

namespace {

// What k_type or v_type says: a type; or a block-scaled format. Its type is unset if nothing is given.
KvFormat read_cache_type(Arguments& arguments, Name name) {
  if (!arguments.given(name)) return {};
  const KvFormat named = kv_format_of(arguments.string(name));
  return is_block_scaled(named) ? named : KvFormat{arguments.dtype(name)};
}

// Scales of blocks: a byte each.
void read_block_scales(const Array& scales, bool nhd, const PagedKvView& cache, PagedHeads& heads) {
  const int token_axis = nhd ? 1 : 2, head_axis = nhd ? 2 : 1;
  if (scales.dtype() != DType::uint8 && scales.dtype() != DType::fp8_e4m3) {
    fail_type(scales.name(), " is ", dtype_name(scales.dtype()), ": it must be uint8 or fp8_e4m3");
  }
  scales.require_rank(4, 4).require_size(0, cache.num_pages, "the pages");
  scales.require_size(token_axis, cache.page_size, "the page size").require_size(head_axis, cache.num_kv_heads, "the kv heads");
  const int64_t channels = block_channels(heads.format);
  scales.require_size(3, heads.head_dim / channels, "the blocks of a head").require_contiguous(3);
  heads.block_scale = static_cast<uint8_t*>(scales.data());
  heads.scale_strides = {scales.stride(0), scales.stride(token_axis), scales.stride(head_axis)};
}

}  // namespace

PagedKvView read_paged_kv(Arguments& operation) {
  PagedKvView cache;
  Arguments arguments(operation, "cache");
  if (!arguments) return cache;
  const Array k = arguments.optional_array("k", "k_cache"), v = arguments.optional_array("v", "v_cache");
  const Array k_scale = arguments.optional_array("k_scale"), v_scale = arguments.optional_array("v_scale");
  const bool nhd = arguments.choice<bool>("layout", {{"nhd", true}, {"hnd", false}});
  const KvScaling scaling = arguments.choice<KvScaling>("scaling", {{"none", KvScaling::none},
                                                                    {"tensor", KvScaling::tensor},
                                                                    {"head", KvScaling::head},
                                                                    {"token_head", KvScaling::token_head}});
  const KvFormat k_type = read_cache_type(arguments, "k_type"), v_type = read_cache_type(arguments, "v_type");
  const Array k_blocks = arguments.optional_array("k_block_scale"), v_blocks = arguments.optional_array("v_block_scale");
  const auto layout_of_blocks = [&](Name name) {
    return arguments.choice<BlockScaleLayout>(
        name, {{"linear", BlockScaleLayout::linear}, {"interleaved_4_tokens", BlockScaleLayout::interleaved_4_tokens}});
  };
  cache.k.block_scale_layout = layout_of_blocks("k_block_scale_layout");
  cache.v.block_scale_layout = layout_of_blocks("v_block_scale_layout");
  arguments.require_all_read();
  const Array& first = k ? k : v;
  if (!first) fail_value("cache: both k and v are None: leave out the cache instead");
  first.require_rank(4, 4);
  const int token_axis = nhd ? 1 : 2, head_axis = nhd ? 2 : 1;
  cache.num_pages = first.size(0), cache.page_size = first.size(token_axis), cache.num_kv_heads = first.size(head_axis);

  const auto read = [&](const Array& array, const Array& scale, const Array& blocks, const KvFormat& given, PagedHeads& heads) {
    if (!array) return;
    const DType type = given.type;
    const bool block_scaled = is_block_scaled(given);
    array.require_rank(4, 4).require_contiguous(3);
    array.require_size(0, cache.num_pages, "the pages").require_size(token_axis, cache.page_size, "the page size");
    array.require_size(head_axis, cache.num_kv_heads, "the kv heads");
    heads.format.type = type == DType::unset ? array.dtype() : type;
    heads.format.scaling = block_scaled ? given.scaling : scaling;
    if (dtype_is_quantized(heads.format.type) || heads.format.type == array.dtype()) {
      if (dtype_is_quantized(heads.format.type) && dtype_size(array.dtype()) != 1) {
        fail_type(array.name(), " is ", dtype_name(array.dtype()), ": for ", dtype_name(type),
                  " it must have elements of one byte");
      }
    } else {
      fail_type(array.name(), " is ", dtype_name(array.dtype()), ", and its type is given as ", dtype_name(type));
    }
    if (!block_scaled && blocks) {
      fail_value(blocks.name(), " is given, but ", array.name(), " is ", dtype_name(heads.format.type),
                 ": only mxfp8, mxfp4 and nvfp4 have scales of blocks");
    }
    const int64_t per_byte = dtype_bits(heads.format.type) == 4 ? 2 : 1;
    heads.data = array.data();
    heads.head_dim = array.size(3) * per_byte;
    heads.strides = {array.stride(0) * per_byte, array.stride(token_axis) * per_byte, array.stride(head_axis) * per_byte};
    if (!dtype_is_quantized(heads.format.type)) {
      heads.format.scaling = KvScaling::none;
      return;
    }
    if (block_scaled) {
      if (!blocks) fail_value(array.name(), " is ", kv_format_name(given), ": its block_scale must be given");
      read_block_scales(blocks, nhd, cache, heads);
      if (scale && given.scaling == KvScaling::mx) {
        fail_value(scale.name(), " is given, but ", array.name(), " is ", kv_format_name(given), ": its only scales are those of blocks");
      }
      if (scale) heads.scale = scale.require_one_number().as<float>(DType::f32);
      return;
    }
    if (scaling == KvScaling::none) return;
    if (!scale) fail_value(array.name(), " has no scale: its scaling needs one");
    heads.scale = scale.as<float>(DType::f32);
    if (scaling == KvScaling::tensor) scale.require_one_number();
    if (scaling == KvScaling::head) {
      scale.require_rank(1, 1).require_size(0, cache.num_kv_heads, "one for each kv head").require_dense();
    }
    if (scaling == KvScaling::token_head) {
      const int axes = heads.format.type == DType::uint4 ? 4 : 3;
      scale.require_rank(axes, axes).require_size(0, cache.num_pages, "the pages");
      scale.require_size(token_axis, cache.page_size, "the page size")
          .require_size(head_axis, cache.num_kv_heads, "the kv heads");
      if (axes == 4) scale.require_size(3, 2, "scale and zero point").require_contiguous(3);
      heads.scale_strides = {scale.stride(0), scale.stride(token_axis), scale.stride(head_axis)};
    }
  };
  read(k, k_scale, k_blocks, k_type, cache.k);
  read(v, v_scale, v_blocks, v_type, cache.v);
  if (!k) cache.k.head_dim = cache.v.head_dim;
  return cache;
}

}  // namespace prologue::python
