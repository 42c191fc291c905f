// Calls kernels/mla_prologue/mla_prologue.h with any struct.
#include <prologue/kernels/mla_prologue/mla_prologue.h>

#include "tests/fuzz/prologue_parts.h"

using namespace prologue;
using namespace prologue::fuzz;

namespace {

int64_t size_of(DType type) { return std::max<int64_t>(dtype_valid(type) ? dtype_bits(type) / 8 : 1, 1); }

int64_t width(Choices& choices) {
  if (choices.hostile()) return choices.absurd();
  return 16 * (choices.chance(8) ? choices.integer(1, 64) : choices.integer(1, 3));
}

// Has rows of `of` channels, apart or in one buffer.
Extent extent_of(int64_t count, int64_t stride, int64_t channels, DType dtype) {
  return rows(count, stride, channels, 8 * size_of(dtype));
}

void decode_rope(Choices& choices, MemoryMap& map, MlaPrologueParams& p) {
  Rope& r = p.rope;
  r.style = choices.enumerator(RopeStyle::interleaved);
  r.past_table = choices.enumerator(PastTable::identity);
  r.inverse = choices.chance(3) ? 1 : 0;
  r.max_position = choices.size(0, 9);
  if (choices.chance(4)) return;
  r.rotary_dim = choices.hostile() ? choices.absurd() : p.qk_rope_head_dim;
  r.source =
      choices.hostile() ? choices.enumerator(RopeSource::angles_per_token) : static_cast<RopeSource>(choices.integer(0, 2));
  r.max_position = choices.size(1, 9);
  r.rotary_offset = choices.hostile() ? choices.absurd() : 0;
  r.num_blocks = choices.hostile() ? choices.absurd() : 1;
  r.num_axes = choices.hostile() ? choices.absurd() : 1;
  r.type = r.source == RopeSource::inv_freq ? DType::f32 : activation_type(choices);
  r.width = choices.hostile() ? choices.enumerator(RopeWidth::full) : RopeWidth::half;
  const int64_t pairs = p.qk_rope_head_dim / 2;
  if (r.source == RopeSource::inv_freq) {
    map.array("rope.inv_freq", r.inv_freq, dense(pairs, 4), Use::read);
    return;
  }
  const int64_t count = r.source == RopeSource::table ? r.max_position : p.num_tokens;
  for (RopeColumns* columns : {&r.cos, &r.sin}) {
    columns->row_stride = choices.stride(pairs);
    map.array(columns == &r.cos ? "rope.cos" : "rope.sin", columns->data, extent_of(count, columns->row_stride, pairs, r.type),
              Use::read, r.type);
  }
}

struct Entry {
  int64_t width = 0;  // bytes
  int64_t element = 1;
};

Entry latent_entry(const MlaPrologueParams& p) {
  const KvFormat& format = p.cache.latent.format;
  const int64_t element = size_of(resolve_dtype(format.type, p.dtype));
  const int64_t scales = format.scaling == KvScaling::token_head ? p.kv_lora_rank / 128 * 4 : 0;
  return {plus(times(p.kv_lora_rank, element), scales), element};
}
Entry rope_entry(const MlaPrologueParams& p) {
  const int64_t element = size_of(resolve_dtype(p.cache.rope.format.type, p.dtype));
  return {times(p.qk_rope_head_dim, element), element};
}

void decode_cache(Choices& choices, MemoryMap& map, MlaPrologueParams& p) {
  MlaCache& c = p.cache;
  constexpr DType kTypes[] = {DType::unset, DType::f32, DType::f16, DType::bf16, DType::fp8_e4m3, DType::fp8_e5m2};
  c.num_pages = choices.size(1, 4);
  c.page_size = choices.size(1, 5);
  const bool record = choices.chance(4);
  for (MlaCachePart* part : {&c.latent, &c.rope}) {
    part->format.type = type_of(choices, kTypes);
    if (dtype_is_fp8(part->format.type)) part->format.scaling = choices.chance(2) ? KvScaling::tensor : KvScaling::none;
    if (choices.hostile()) part->format.scaling = choices.enumerator(KvScaling::token_head);
  }
  if (record) {
    c.latent.format = {DType::fp8_e4m3, KvScaling::token_head};
    c.rope.format = {};
    if (!choices.hostile()) p.kv_lora_rank = 256 * choices.integer(1, 2);
  }
  const Entry latent = latent_entry(p), rope = rope_entry(p);
  const auto strides = [&](MlaCachePart& part, const Entry& entry, int64_t bytes) {
    const int64_t tight = plus(bytes, entry.element - 1) / entry.element;
    const int64_t each = part.format.scaling == KvScaling::token_head && !choices.hostile() ? 4 : 1;
    part.token_stride = times(each, choices.stride(plus(tight, each - 1) / each));
    part.page_stride = times(each, choices.stride(plus(times(c.page_size, part.token_stride), each - 1) / each));
  };
  const auto extent = [&](const MlaCachePart& part, const Entry& entry) {
    const int64_t alignment = part.format.scaling == KvScaling::token_head ? 4 : entry.element;
    return Extent{
        entry.width,
        alignment,
        {{c.num_pages, times(part.page_stride, entry.element)}, {c.page_size, times(part.token_stride, entry.element)}}};
  };
  // Both parts may be in one entry: then they have the same strides in bytes.
  const bool together = latent.element <= 4 && rope.element <= 4 && choices.chance(2);
  const int64_t both = plus(times(plus(latent.width, 3) / 4, 4), rope.width);
  strides(c.latent, latent, together ? times(plus(both, 3) / 4, 4) : latent.width);
  strides(c.rope, rope, rope.width);
  if (together) {
    c.latent.token_stride = times(c.latent.token_stride, 4), c.latent.page_stride = times(c.latent.page_stride, 4);
    c.rope.token_stride = times(c.latent.token_stride, latent.element) / rope.element;
    c.rope.page_stride = times(c.latent.page_stride, latent.element) / rope.element;
  }
  int at = -1;
  if (p.kv_lora_rank > 0 && !choices.chance(6))
    at = map.optional("cache.latent", c.latent.data, extent(c.latent, latent), Use::write);
  if (p.qk_rope_head_dim > 0 && !choices.chance(6)) {
    const int index = map.optional("cache.rope", c.rope.data, extent(c.rope, rope), Use::write);
    if (together && at >= 0) map.place(index, at, times(plus(latent.width, 3) / 4, 4));
  }
  if (c.latent.format.scaling == KvScaling::tensor) map.array("cache.latent.scale", c.latent.scale, dense(1, 4), Use::read);
  if (c.rope.format.scaling == KvScaling::tensor) map.array("cache.rope.scale", c.rope.scale, dense(1, 4), Use::read);
}

void permit_all(MemoryMap& map, const MlaPrologueParams& p) {
  map.permit(p.faults, 0, sizeof(FaultRecord));
  const int64_t bits = 8 * size_of(p.dtype), given = slots_given_of(p.slot_mapping_len, p.num_tokens);
  for (int64_t t = 0; t < p.num_tokens; ++t) {
    if (p.positions.data != nullptr && get_index(p.positions.data, index_size(p.positions), t) < 0) continue;
    if (p.token_faults != nullptr) map.permit(p.token_faults, t, 1);
    if (p.kv_c != nullptr) permit_rows(map, p.kv_c_out, t, p.kv_c_out_stride, 1, 0, p.kv_lora_rank, bits);
    if (p.k_pe != nullptr) permit_rows(map, p.k_pe_out, t, p.k_pe_out_stride, 1, 0, p.qk_rope_head_dim, bits);
    permit_rows(map, p.q_pe_out.data, t, p.q_pe_out.token_stride, p.num_q_heads, p.q_pe_out.head_stride, p.qk_rope_head_dim,
                bits);
    if (p.slot_mapping.data == nullptr || t >= given) continue;
    const int64_t slot = get_index(p.slot_mapping.data, index_size(p.slot_mapping), t);
    if (slot < 0 || slot >= times(p.cache.num_pages, p.cache.page_size)) continue;
    const auto permit = [&](const MlaCachePart& part, const Entry& entry) {
      if (!present(part.data)) return;
      const int64_t at = slot / p.cache.page_size * part.page_stride + slot % p.cache.page_size * part.token_stride;
      map.permit(part.data, at * entry.element, entry.width);
    };
    if (p.kv_c != nullptr) permit(p.cache.latent, latent_entry(p));
    if (p.k_pe != nullptr) permit(p.cache.rope, rope_entry(p));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Tally tally("mla_prologue");
  Choices choices(data, size);
  MemoryMap map(choices);
  MlaPrologueParams p;
  p.num_tokens = choices.size(0, 5);
  p.num_q_heads = choices.size(0, 3);
  p.dtype = activation_type(choices);
  p.kv_lora_rank = width(choices);
  p.qk_rope_head_dim = width(choices);
  p.overlaps = choices.chance(2);
  decode_cache(choices, map, p);
  const DType contents = float_type_of(p.dtype);
  const auto pair = [&](const char* name, const char* name_of_out, const void*& x, int64_t& x_stride, void*& y, int64_t& y_stride,
                        int64_t of) {
    x_stride = choices.stride(of);
    const bool same = choices.chance(2);
    y_stride = same ? x_stride : choices.stride(of);
    const int in = map.optional(name, x, extent_of(p.num_tokens, x_stride, of, p.dtype), Use::read, contents);
    map.never_null(in);
    if (choices.chance(3)) return;
    const int out = map.optional(name_of_out, y, extent_of(p.num_tokens, y_stride, of, p.dtype), Use::write);
    map.in_place(out, in, same && choices.chance(2));
  };
  if (!choices.chance(8)) pair("kv_c", "kv_c_out", p.kv_c, p.kv_c_stride, p.kv_c_out, p.kv_c_out_stride, p.kv_lora_rank);
  if (!choices.chance(8)) pair("k_pe", "k_pe_out", p.k_pe, p.k_pe_stride, p.k_pe_out, p.k_pe_out_stride, p.qk_rope_head_dim);
  const bool caches_latent = p.kv_c_stride != 0, caches_rope = p.k_pe_stride != 0;
  if (p.num_q_heads > 0) {
    const auto strides = [&](int64_t& token, int64_t& head) {
      head = choices.stride(p.qk_rope_head_dim);
      token = choices.stride(times(p.num_q_heads, head));
    };
    strides(p.q_pe.token_stride, p.q_pe.head_stride);
    const bool same = choices.chance(2);
    strides(p.q_pe_out.token_stride, p.q_pe_out.head_stride);
    if (same) p.q_pe_out.token_stride = p.q_pe.token_stride, p.q_pe_out.head_stride = p.q_pe.head_stride;
    const int64_t bits = 8 * size_of(p.dtype);
    const int in = map.array("q_pe", p.q_pe.data, view_extent(p.q_pe, p.num_tokens, p.num_q_heads, p.qk_rope_head_dim, bits),
                             Use::read, contents);
    const int out = map.array("q_pe_out", p.q_pe_out.data,
                              view_extent(p.q_pe_out, p.num_tokens, p.num_q_heads, p.qk_rope_head_dim, bits), Use::write);
    map.in_place(out, in, same && choices.chance(2));
  }
  if (choices.chance(2)) {
    p.kv_c_norm.placement = choices.hostile() ? choices.enumerator(NormPlacement::after_rope) : NormPlacement::before_rope;
    p.kv_c_norm.eps = choices.real(1e-6f);
    p.kv_c_norm.weight_offset = choices.real(choices.chance(2) ? 0.0f : 1.0f);
    if (choices.chance(3)) p.kv_c_norm.weight_type = DType::f32;
    if (caches_latent && !choices.chance(4)) {
      const DType type = resolve_dtype(p.kv_c_norm.weight_type, p.dtype);
      map.optional("kv_c_norm.weight", p.kv_c_norm.weight, dense(p.kv_lora_rank, size_of(type)), Use::read, float_type_of(type));
    }
  }
  if (choices.chance(3)) {
    p.k_pe_norm.placement = choices.hostile() ? choices.enumerator(NormPlacement::after_rope) : NormPlacement::before_rope;
    p.k_pe_norm.eps = choices.real(1e-6f);
    if (choices.chance(3)) p.k_pe_norm.weight_type = DType::f32;
    if (p.k_pe != nullptr && !choices.chance(4)) {
      const DType type = resolve_dtype(p.k_pe_norm.weight_type, p.dtype);
      map.optional("k_pe_norm.weight", p.k_pe_norm.weight, dense(p.qk_rope_head_dim, size_of(type)), Use::read,
                   float_type_of(type));
    }
  }
  decode_rope(choices, map, p);
  p.positions.type = index_type(choices);
  p.slot_mapping.type = index_type(choices);
  p.slot_mapping_len = slot_mapping_len(choices, p.num_tokens);
  const bool by_position = p.rope.rotary_dim > 0 && p.rope.source != RopeSource::per_token;
  if (by_position || choices.chance(2)) {
    const int at = map.optional("positions", p.positions.data, dense(p.num_tokens, index_size(p.positions)), Use::read);
    if (by_position) map.never_null(at);
  }
  if (caches_latent || caches_rope) {
    const int64_t given = slots_given_of(p.slot_mapping_len, p.num_tokens);
    map.optional("slot_mapping", p.slot_mapping.data, dense(given, index_size(p.slot_mapping)), Use::read);
  }
  if (!choices.chance(8)) map.optional("faults", p.faults, dense(1, sizeof(FaultRecord)), Use::write);
  if (choices.chance(2)) map.optional("token_faults", p.token_faults, dense(p.num_tokens, 1), Use::write);
  if (!map.allocate()) return 0;
  fill_indices(choices, p.positions, p.num_tokens, -1, 9);
  if (present(p.slot_mapping.data)) {
    // No two tokens have the same slot.
    const int64_t slots = times(p.cache.num_pages, p.cache.page_size), first = choices.integer(0, 4);
    for (int64_t t = 0; t < slots_given_of(p.slot_mapping_len, p.num_tokens); ++t) {
      const int64_t slot = choices.chance(8) ? (choices.chance(2) ? -1 : slots) : first + t;
      set_index(p.slot_mapping.data, index_size(p.slot_mapping), t, slot);
    }
  }

  map.freeze();
  if (validate(p).ok()) permit_all(map, p);
  const Status status = mla_prologue(p, execution(choices));
  // What a call without a part, or without tokens, has no use for is not looked at.
  if (p.num_tokens == 0 || p.kv_c == nullptr || p.k_pe == nullptr || p.cache.latent.data == nullptr ||
      p.cache.rope.data == nullptr)
    map.forgive();
  map.check(status);
  tally.count(status.ok());
  return 0;
}
