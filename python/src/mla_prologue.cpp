#include <prologue/kernels/mla_prologue/mla_prologue.h>

#include "groups.h"
#include "plans.h"

namespace prologue::python {
namespace {

// [tokens, channels] or [tokens, 1, channels] with contiguous channels. Returns the channels.
int64_t check_rows(const Array& rows, int64_t num_tokens, DType dtype) {
  rows.require(dtype).require_rank(2, 3).require_size(0, num_tokens, "the tokens").require_contiguous(rows.rank() - 1);
  if (rows.rank() == 3) rows.require_size(1, 1, "one head for all");
  return rows.size(rows.rank() - 1);
}

// [num_pages, page_size, channels], elements that are adjacent.
void check_pages(const Array& pages, MlaCache& cache) {
  pages.require_rank(3, 3).require_contiguous(2);
  if (cache.num_pages == 0) cache.num_pages = pages.size(0), cache.page_size = pages.size(1);
  pages.require_size(0, cache.num_pages, "the pages").require_size(1, cache.page_size, "the page size");
}

KvFormat format_of(const Array& pages, DType given, const Array& scale) {
  const DType type = given == DType::unset ? pages.dtype() : given;
  if (dtype_size(type) != dtype_size(pages.dtype()) || (!dtype_is_fp8(type) && type != pages.dtype())) {
    fail_type(pages.name(), " is ", dtype_name(pages.dtype()), ", and cache_type is ", dtype_name(type));
  }
  return {type, dtype_is_fp8(type) && scale ? KvScaling::tensor : KvScaling::none};
}

void read_cache(Arguments& arguments, MlaPrologueParams& params) {
  const Array entries = arguments.optional_array("kv_cache");
  const Array latent = arguments.optional_array("ckv_cache"), rope = arguments.optional_array("kpe_cache");
  KvFormat given;  // unset: what the arrays' dtype says
  if (arguments.given("cache_type")) {
    given = arguments.choice<KvFormat>("cache_type", {{"fp8_e4m3", {DType::fp8_e4m3, KvScaling::none}},
                                                      {"fp8_e5m2", {DType::fp8_e5m2, KvScaling::none}},
                                                      {"fp8_ds_mla", {DType::fp8_e4m3, KvScaling::token_head}}});
  }
  const bool is_record = given.scaling == KvScaling::token_head;
  const Array scale = arguments.optional_array("cache_scale");
  const float* const factor = scale ? scale.require_one_number().as<const float>(DType::f32) : nullptr;
  if (entries && (latent || rope)) fail_value("kv_cache and ckv_cache or kpe_cache are given: it is one or the other");
  if (is_record && !entries) fail_value("cache_type is 'fp8_ds_mla', but kv_cache is None");
  if (entries) {
    check_pages(entries, params.cache);
    const int64_t rank = params.kv_lora_rank, width = params.qk_rope_head_dim;
    if (is_record) {
      if (dtype_size(entries.dtype()) != 1) {
        fail_type("kv_cache is ", dtype_name(entries.dtype()), ": for 'fp8_ds_mla' its elements must be of one byte");
      }
      entries.require_size(2, rank + rank / 32 + 2 * width, "the bytes of a record");
      set_mla_records(params, entries.data(), entries.stride(0), entries.stride(1));
    } else {
      entries.require_size(2, rank + width, "kv_lora_rank + qk_rope_head_dim");
      const KvFormat format = format_of(entries, given.type, scale);
      set_mla_entries(params, entries.data(), format.type, format.scaling == KvScaling::tensor ? factor : nullptr,
                      entries.stride(0), entries.stride(1));
    }
    return;
  }
  const auto part = [&](const Array& pages, int64_t width, MlaCachePart& to) {
    if (!pages) return;
    check_pages(pages, params.cache);
    pages.require_size(2, width, "the channels of its input");
    to.data = pages.data(), to.format = format_of(pages, given.type, scale), to.scale = factor;
    to.page_stride = pages.stride(0), to.token_stride = pages.stride(1);
  };
  part(latent, params.kv_lora_rank, params.cache.latent);
  part(rope, params.qk_rope_head_dim, params.cache.rope);
}

struct MlaCall {
  using Params = MlaPrologueParams;
  static void read(Arguments& arguments, MlaPrologueParams& params);
  static Result<Unplanned<MlaCall>> plan(const MlaPrologueParams&, const Execution&) { return Unplanned<MlaCall>(); }
  static bool is_empty(const MlaPrologueParams& params) { return params.num_tokens == 0; }
  static Status run(const MlaPrologueParams& params, const Execution& execution) { return mla_prologue(params, execution); }
  static PastTable past_table(const MlaPrologueParams& params) { return params.rope.past_table; }
};

void MlaCall::read(Arguments& arguments, MlaPrologueParams& params) {
  const Array kv_c = arguments.optional_array("kv_c"), k_pe = arguments.optional_array("k_pe");
  const Array q_pe = arguments.optional_array("q_pe");
  const Array& first = kv_c ? kv_c : k_pe ? k_pe : q_pe;
  if (!first) fail_value("kv_c, k_pe and q_pe are all None: one of them must be given");
  first.require_rank(2, 3);
  params.num_tokens = first.size(0);
  params.dtype = first.dtype();
  if (kv_c) {
    params.kv_lora_rank = check_rows(kv_c, params.num_tokens, params.dtype);
    params.kv_c = kv_c.data(), params.kv_c_stride = kv_c.stride(0);
  }
  if (k_pe) {
    params.qk_rope_head_dim = check_rows(k_pe, params.num_tokens, params.dtype);
    params.k_pe = k_pe.data(), params.k_pe_stride = k_pe.stride(0);
  }
  if (q_pe) {
    q_pe.require(params.dtype, first.name()).require_heads().require_size(0, params.num_tokens, "the tokens");
    if (k_pe) q_pe.require_size(2, params.qk_rope_head_dim, "as k_pe");
    params.num_q_heads = q_pe.size(1), params.qk_rope_head_dim = q_pe.size(2);
    params.q_pe = heads_view(q_pe);
  }
  read_cache(arguments, params);
  params.kv_c_norm = read_head_norm(arguments, "norm", 1, params.kv_lora_rank);
  params.k_pe_norm = read_head_norm(arguments, "k_pe_norm", 1, params.qk_rope_head_dim);
  params.rope = read_rope(arguments, 1, params.num_tokens, params.qk_rope_head_dim, RopeSources::of_prologues);
  if (const Array positions = arguments.optional_array("positions"); positions) {
    positions.require_rank(1, 1).require_size(0, params.num_tokens, "one for each token");
    params.positions = index_view_of(positions);
  }
  if (const Array slots = arguments.optional_array("slot_mapping"); slots) {
    params.slot_mapping = index_view_of(slots.require_rank(1, 1));
    params.slot_mapping_len = slots.size(0) == params.num_tokens ? 0 : slots.size(0);
    if (params.num_tokens > 0 && (slots.size(0) == 0 || slots.size(0) > params.num_tokens)) {
      fail_value("slot_mapping has ", slots.size(0), " elements: it must have 1 to ", params.num_tokens, ", the tokens");
    }
  }
  if (const Array out = arguments.optional_array("q_pe_out"); out) {
    out.require(params.dtype, first.name()).require_heads().require_size(0, params.num_tokens, "the tokens");
    out.require_size(1, params.num_q_heads, "the heads of q_pe").require_size(2, params.qk_rope_head_dim, "as q_pe");
    params.q_pe_out = mutable_heads_view(out);
  }
  if (const Array out = arguments.optional_array("kv_c_out"); out) {
    if (check_rows(out, params.num_tokens, params.dtype) != params.kv_lora_rank)
      fail_value("kv_c_out has the shape ", out.shape_text());
    params.kv_c_out = out.data(), params.kv_c_out_stride = out.stride(0);
  }
  if (const Array out = arguments.optional_array("k_pe_out"); out) {
    if (check_rows(out, params.num_tokens, params.dtype) != params.qk_rope_head_dim)
      fail_value("k_pe_out has the shape ", out.shape_text());
    params.k_pe_out = out.data(), params.k_pe_out_stride = out.stride(0);
  }
  const Array faults = arguments.optional_array("faults");
  params.token_faults = token_faults_of(arguments.optional_array("token_faults"), params.num_tokens);
  params.faults = fault_record_of(faults);
  arguments.require_all_read();
}

}  // namespace
}  // namespace prologue::python

PROLOGUE_PLANNED_FUNCTION(mla_prologue, prologue::python::MlaCall)
