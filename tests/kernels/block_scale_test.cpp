// Block-scaled caches (MXFP8, MXFP4, NVFP4): the conversions against tables of all codes, what kv_write and the prologue store, bit for bit,
// and what attention reads.
#include <prologue/kernels/base/shared/block_scale.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <prologue/kernels/attention_prologue/attention_prologue.h>
#include <prologue/kernels/attention_prologue/stages/stages.h>
#include <prologue/kernels/base/kv_types.h>
#include <prologue/kernels/paged_attention/paged_attention.h>
#include <prologue/kernels/rerope/rerope.h>

#include "tests/support/arena.h"
#include "tests/support/prologue_results.h"
#include "tests/support/random.h"
#include "tests/support/refusals.h"
#include "tests/support/tolerance.h"
#include "tests/support/types.h"

namespace prologue::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

constexpr KvFormat kMxfp8 = {DType::fp8_e4m3, KvScaling::mx}, kMxfp4 = {DType::fp4_e2m1, KvScaling::mx},
                   kNvfp4 = {DType::fp4_e2m1, KvScaling::nv};

// ---- an oracle from the definitions of the formats ------------------------------------------------------------------------------

// The values of the codes without a sign, in order.
const std::vector<double>& magnitudes(DType type) {
  static const std::vector<double> kE2m1 = {0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0};
  static const std::vector<double> kE4m3 = [] {  // all but the NaN
    std::vector<double> values;
    for (int code = 0; code < 127; ++code) {
      const int exponent = code >> 3, mantissa = code & 7;
      values.push_back(exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10));
    }
    return values;
  }();
  return type == DType::fp4_e2m1 ? kE2m1 : kE4m3;
}

// Returns the code whose value is nearest, the even one of two, and the largest for what is too large.
uint8_t nearest_code(double x, DType type) {
  const std::vector<double>& values = magnitudes(type);
  const double magnitude = std::fabs(x);
  size_t best = 0;
  for (size_t code = 1; code < values.size(); ++code) {
    const double now = std::fabs(values[code] - magnitude), before = std::fabs(values[best] - magnitude);
    if (now < before || (now == before && code % 2 == 0)) best = code;
  }
  if (magnitude >= values.back()) best = values.size() - 1;
  const uint8_t sign = type == DType::fp4_e2m1 ? 8 : 0x80;
  return static_cast<uint8_t>(best | (std::signbit(x) ? sign : 0));
}

double value_of(uint8_t code, DType type) {
  const uint8_t sign = type == DType::fp4_e2m1 ? 8 : 0x80;
  const size_t magnitude = static_cast<size_t>(code & (sign - 1));
  const std::vector<double>& values = magnitudes(type);
  if (magnitude >= values.size()) return std::nan("");
  return (code & sign) != 0 ? -values[magnitude] : values[magnitude];
}

struct Block {
  uint8_t scale;
  std::vector<uint8_t> codes;
};

// Stores a block by the rules of KvFormat.
Block stored_block(const float* x, const KvFormat& format, float tensor_scale) {
  const bool mx = format.scaling == KvScaling::mx;
  const int count = mx ? 32 : 16;
  Block block = {0, std::vector<uint8_t>(static_cast<size_t>(count), 0)};
  float amax = 0.0f;
  for (int i = 0; i < count; ++i) {
    if (!std::isfinite(x[i])) {
      block.scale = mx ? 255 : 0x7f;
      return block;
    }
    amax = std::max(amax, std::fabs(x[i]));
  }
  if (mx) {
    const int largest_exponent = format.type == DType::fp8_e4m3 ? 8 : 2;
    if (amax > 0.0f) block.scale = static_cast<uint8_t>(std::max(0, 127 + std::ilogb(amax) - largest_exponent));
    for (int i = 0; i < count; ++i) {
      const double quotient = std::ldexp(static_cast<double>(x[i]), 127 - block.scale);
      block.codes[static_cast<size_t>(i)] = nearest_code(quotient, format.type);
    }
    return block;
  }
  const float reciprocal_of_tensor = 1.0f / tensor_scale;
  const float wanted = amax / 6.0f * reciprocal_of_tensor;
  const uint8_t scale = nearest_code(static_cast<double>(wanted), DType::fp8_e4m3);
  const float step = tensor_scale * static_cast<float>(value_of(scale, DType::fp8_e4m3));
  const float reciprocal = 1.0f / step;
  if (!std::isfinite(reciprocal)) return block;
  block.scale = scale;
  for (int i = 0; i < count; ++i) {
    block.codes[static_cast<size_t>(i)] = nearest_code(static_cast<double>(x[i] * reciprocal), DType::fp4_e2m1);
  }
  return block;
}

double factor_of(uint8_t scale, const KvFormat& format, float tensor_scale) {
  if (format.scaling == KvScaling::mx) return scale == 255 ? std::nan("") : std::ldexp(1.0, scale - 127);
  return value_of(scale, DType::fp8_e4m3) * static_cast<double>(tensor_scale);
}

// ---- conversions ----------------------------------------------------------------------------------------------------------------

TEST(Fp4, ReadsEveryCode) {
  for (int code = 0; code < 16; ++code) {
    const float got = from_fp4_e2m1(static_cast<uint8_t>(code));
    EXPECT_EQ(static_cast<double>(got), value_of(static_cast<uint8_t>(code), DType::fp4_e2m1)) << code;
    EXPECT_EQ(std::signbit(got), code >= 8) << code;
  }
}

TEST(Fp4, RoundsEveryValueAndMidpointToNearestEven) {
  const std::vector<double>& values = magnitudes(DType::fp4_e2m1);
  for (size_t code = 0; code + 1 < values.size(); ++code) {
    const auto low = static_cast<float>(values[code]), high = static_cast<float>(values[code + 1]), middle = 0.5f * (low + high);
    for (const uint8_t sign : {0, 8}) {
      const auto to = [&](float x) { return to_fp4_e2m1(sign != 0 ? -x : x); };
      EXPECT_EQ(to(low), code | sign);
      EXPECT_EQ(to(std::nextafter(middle, 0.0f)), code | sign);
      EXPECT_EQ(to(middle), (code % 2 == 0 ? code : code + 1) | sign) << middle;
      EXPECT_EQ(to(std::nextafter(middle, kInf)), (code + 1) | sign);
    }
  }
  for (const float x : {6.0f, 7.0f, 8.0f, 1e38f, kInf}) {
    EXPECT_EQ(to_fp4_e2m1(x), 7);
    EXPECT_EQ(to_fp4_e2m1(-x), 15);
  }
}

TEST(Ue8m0, ReadsEveryCode) {
  for (int code = 0; code < 255; ++code) {
    EXPECT_EQ(static_cast<double>(from_ue8m0(static_cast<uint8_t>(code))), std::ldexp(1.0, code - 127)) << code;
  }
  EXPECT_TRUE(std::isnan(from_ue8m0(255)));
}

TEST(BlockScale, OfEveryExponentIsThatOfTheSpecification) {
  for (const KvFormat& format : {kMxfp8, kMxfp4}) {
    const int largest_exponent = format.type == DType::fp8_e4m3 ? 8 : 2;
    for (int exponent = -149; exponent < 128; ++exponent) {
      const float first = std::ldexp(1.0f, exponent), last = std::nextafter(2.0f * first, 0.0f);
      for (const float amax : {first, 1.5f * first, last}) {
        if (!std::isfinite(amax) || std::ilogb(amax) != exponent) continue;
        const BlockScale scale = block_scale_of(magnitude_bits(amax), format, 1.0f);
        const int want = std::max(0, exponent - largest_exponent + 127);
        EXPECT_EQ(scale.code, want) << amax;
        EXPECT_EQ(static_cast<double>(scale.reciprocal), std::ldexp(1.0, 127 - want)) << amax;
        EXPECT_EQ(static_cast<double>(block_factor(scale.code, format, 3.0f)), std::ldexp(1.0, want - 127)) << amax;
      }
    }
  }
  EXPECT_EQ(block_scale_of(magnitude_bits(6.0f * 448.0f), kNvfp4, 1.0f).code, 0x7e);
  EXPECT_EQ(block_scale_of(magnitude_bits(1e30f), kNvfp4, 1.0f).code, 0x7e);
  EXPECT_EQ(block_scale_of(magnitude_bits(6.0f), kNvfp4, 0.5f).code, nearest_code(2.0, DType::fp8_e4m3));
  for (const KvFormat& format : {kMxfp8, kMxfp4, kNvfp4}) {
    for (const float x : {kNan, kInf, -kInf}) {
      const BlockScale scale = block_scale_of(magnitude_bits(x), format, 1.0f);
      EXPECT_EQ(scale.code, format.scaling == KvScaling::mx ? 0xff : 0x7f);
      EXPECT_EQ(scale.reciprocal, 0.0f);
      EXPECT_TRUE(std::isnan(block_factor(scale.code, format, 1.0f)));
    }
    EXPECT_EQ(block_scale_of(0, format, 1.0f).code, 0);
  }
}

TEST(KvFormats, AreFoundByTheirNames) {
  const std::pair<const char*, KvFormat> named[] = {{"mxfp8", kMxfp8}, {"mxfp4", kMxfp4}, {"nvfp4", kNvfp4}};
  for (const auto& [name, format] : named) {
    EXPECT_EQ(kv_format_of(name).type, format.type);
    EXPECT_EQ(kv_format_of(name).scaling, format.scaling);
    EXPECT_STREQ(kv_format_name(format), name);
  }
}

// ---- a cache on the host --------------------------------------------------------------------------------------------------------

enum class Layout { nhd, hnd, vllm_page, vllm_page_interleaved };

// Returns the numbers of a side on the host: data, scales of blocks and of the tensor. Data and scales of a page may be one buffer.
struct HostSide {
  KvFormat format;
  int64_t head_dim = 0;
  PageStrides strides, scale_strides;  // in elements, and as PagedHeads has them
  BlockScaleLayout layout = BlockScaleLayout::linear;
  std::vector<uint8_t> data, block_scale;  // vllm_page: both are in the cache's one buffer
  std::vector<float> scale;
  int64_t data_at = 0, scale_at = 0;  // in that buffer
};

struct HostCache {
  static constexpr int64_t kPages = 3, kPageSize = 8, kHeads = 2;
  HostSide k, v;
  std::vector<uint8_t> page_buffer;  // [K data, K scales, V data, V scales] of each page

  HostCache(const KvFormat& k_format, const KvFormat& v_format, int64_t k_dim, int64_t v_dim, Layout layout) {
    k.format = k_format, v.format = v_format, k.head_dim = k_dim, v.head_dim = v_dim;
    const bool one_buffer = layout == Layout::vllm_page || layout == Layout::vllm_page_interleaved;
    if (layout == Layout::vllm_page_interleaved) v.layout = BlockScaleLayout::interleaved_4_tokens;
    const auto blocks_of = [](const HostSide& side) {
      return is_block_scaled(side.format) ? side.head_dim / block_channels(side.format) : 0;
    };
    const auto bytes_of = [](const HostSide& side) { return side.head_dim * dtype_bits(side.format.type) / 8; };
    const int64_t rows = kPageSize * kHeads;
    const int64_t page_bytes = rows * (bytes_of(k) + blocks_of(k) + bytes_of(v) + blocks_of(v));
    int64_t at = 0;
    for (HostSide* side : {&k, &v}) {
      const int64_t per_byte = dtype_bits(side->format.type) == 4 ? 2 : 1, d = side->head_dim, n = blocks_of(*side);
      const int64_t size = std::max<int64_t>(dtype_bits(side->format.type) / 8, 1);
      const int64_t page = one_buffer ? page_bytes * per_byte / size : rows * d, scale_page = one_buffer ? page_bytes : rows * n;
      if (layout == Layout::nhd) {
        side->strides = {page, kHeads * d, d}, side->scale_strides = {scale_page, kHeads * n, n};
      } else {
        side->strides = {page, d, kPageSize * d}, side->scale_strides = {scale_page, n, kPageSize * n};
      }
      if (!is_block_scaled(side->format)) side->scale_strides = nhd_strides(kPageSize, kHeads, 1);
      side->data_at = at, side->scale_at = at + rows * bytes_of(*side);
      at += rows * (bytes_of(*side) + n);
      if (!one_buffer) {
        side->data.assign(static_cast<size_t>(kPages * rows * bytes_of(*side)), kPoison);
        side->block_scale.assign(static_cast<size_t>(kPages * rows * n), kPoison);
        side->data_at = side->scale_at = 0;
      }
      if (side->format.scaling == KvScaling::nv) side->scale = {side == &k ? 0.75f : 0.037f};
      if (side->format.scaling == KvScaling::token_head) side->scale.assign(static_cast<size_t>(kPages * rows), 0.02f);
    }
    if (one_buffer) page_buffer.assign(static_cast<size_t>(kPages * page_bytes), kPoison);
  }

  float tensor_scale(const HostSide& side) const { return side.format.scaling == KvScaling::nv ? side.scale[0] : 1.0f; }
  uint8_t* data_of(HostSide& side) { return page_buffer.empty() ? side.data.data() : page_buffer.data() + side.data_at; }
  uint8_t* scales_of(HostSide& side) {
    return page_buffer.empty() ? side.block_scale.data() : page_buffer.data() + side.scale_at;
  }

  // The place of a block's scale: vLLM's formula for the interleaved one.
  uint8_t& scale_of(HostSide& side, int64_t slot, int64_t head, int64_t block) {
    const int64_t page = slot / kPageSize, t = slot % kPageSize, n = side.head_dim / block_channels(side.format);
    int64_t row = t, column = block;
    if (side.layout == BlockScaleLayout::interleaved_4_tokens) {
      row = t / 4 * 4 + block / (n / 4);
      column = block % (n / 4) * 4 + t % 4;
    }
    const PageStrides& s = side.scale_strides;
    return scales_of(side)[page * s.page + row * s.token + head * s.head + column];
  }
  void set_code(HostSide& side, int64_t slot, int64_t head, int64_t channel, uint8_t code) {
    const int64_t at = element(side, slot, head, channel);
    if (dtype_bits(side.format.type) != 4) {
      data_of(side)[at] = code;
      return;
    }
    uint8_t& byte = data_of(side)[at / 2];
    byte = static_cast<uint8_t>(at % 2 == 0 ? (byte & 0xf0) | code : (byte & 0x0f) | code << 4);
  }
  static int64_t element(const HostSide& side, int64_t slot, int64_t head, int64_t channel) {
    return slot / kPageSize * side.strides.page + slot % kPageSize * side.strides.token + head * side.strides.head + channel;
  }

  // Stores a head as the operation should.
  void store(HostSide& side, int64_t slot, int64_t head, const float* x) {
    const int64_t channels = block_channels(side.format);
    for (int64_t block = 0; block < side.head_dim / channels; ++block) {
      const Block stored = stored_block(x + block * channels, side.format, tensor_scale(side));
      scale_of(side, slot, head, block) = stored.scale;
      for (int64_t i = 0; i < channels; ++i)
        set_code(side, slot, head, block * channels + i, stored.codes[static_cast<size_t>(i)]);
    }
  }
  double value(HostSide& side, int64_t slot, int64_t head, int64_t channel) {
    const int64_t at = element(side, slot, head, channel);
    const DType type = side.format.type;
    const uint8_t byte = data_of(side)[dtype_bits(type) == 4 ? at / 2 : at];
    if (type == DType::int8) return static_cast<int8_t>(byte) * 0.02;
    const uint8_t code = dtype_bits(type) == 4 ? static_cast<uint8_t>(at % 2 == 0 ? byte & 15 : byte >> 4) : byte;
    const uint8_t scale = scale_of(side, slot, head, channel / block_channels(side.format));
    return value_of(code, type) * factor_of(scale, side.format, tensor_scale(side));
  }
};

// Holds a HostCache in an arena.
struct PlacedCache {
  PagedKvView view;
  uint8_t *k = nullptr, *k_scale = nullptr, *v = nullptr, *v_scale = nullptr, *buffer = nullptr;

  PlacedCache(Arena& arena, const HostCache& host) {
    if (!host.page_buffer.empty()) buffer = arena.inout(host.page_buffer);
    const auto place = [&](const HostSide& side, PagedHeads& heads, uint8_t*& data, uint8_t*& scales) {
      data = buffer != nullptr ? buffer + side.data_at : arena.inout(side.data);
      heads.data = data;
      heads.head_dim = side.head_dim;
      heads.format = side.format;
      heads.strides = side.strides;
      heads.scale_strides = side.scale_strides;
      heads.block_scale_layout = side.layout;
      if (is_block_scaled(side.format)) {
        scales = buffer != nullptr ? buffer + side.scale_at : arena.inout(side.block_scale);
        heads.block_scale = scales;
      }
      if (!side.scale.empty()) heads.scale = arena.input(side.scale);
    };
    place(host.k, view.k, k, k_scale);
    place(host.v, view.v, v, v_scale);
    view.num_pages = HostCache::kPages, view.page_size = HostCache::kPageSize, view.num_kv_heads = HostCache::kHeads;
  }
};

class BlockScaleTest : public ::testing::TestWithParam<Backend> {
 protected:
  void SetUp() override { PROLOGUE_REQUIRE_BACKEND(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Backends, BlockScaleTest, ::testing::ValuesIn(all_backends()),
                         [](const auto& instance) { return std::string(backend_name(instance.param)); });

// Heads of all kinds of blocks: usual ones, of one large number, zeros of both signs, subnormal ones, huge ones, with NaN and infinities.
template <class T>
std::vector<T> heads_of_all_kinds(int64_t count, Random& random) {
  std::vector<T> x = random.normals<T>(count);
  const auto whole = [&](int64_t block, const auto& value) {
    for (int64_t i = 0; i < 16 && block * 16 + i < count; ++i) x[static_cast<size_t>(block * 16 + i)] = from_float<T>(value(i));
  };
  for (int64_t block = 0; block * 16 < count; ++block) {
    switch (random.integer(0, 11)) {
      case 0: whole(block, [&](int64_t i) { return i == 5 ? 300.0f : 0.01f; }); break;
      case 1: whole(block, [&](int64_t i) { return i % 2 == 0 ? 0.0f : -0.0f; }); break;
      case 2: whole(block, [&](int64_t i) { return static_cast<float>(i) * 1e-39f; }); break;
      case 3: whole(block, [&](int64_t i) { return i == 3 ? -3.3e38f : static_cast<float>(i) * 1e37f; }); break;
      case 4: whole(block, [&](int64_t i) { return i == 7 ? kNan : 1.0f; }); break;
      case 5: whole(block, [&](int64_t i) { return i == 9 ? -kInf : 1.0f; }); break;
      case 6: whole(block, [&](int64_t i) { return static_cast<float>(i - 8) * 0.25f; }); break;  // ties
      default: break;
    }
  }
  return x;
}

struct FormatCase {
  KvFormat k, v;
  int64_t k_dim, v_dim;
  Layout layout;
};

const std::vector<FormatCase>& format_cases() {
  static const std::vector<FormatCase> cases = {{kMxfp8, kMxfp8, 64, 64, Layout::nhd},
                                                {kMxfp4, kMxfp4, 128, 128, Layout::hnd},
                                                {kNvfp4, kNvfp4, 128, 128, Layout::nhd},
                                                {kNvfp4, kNvfp4, 64, 64, Layout::vllm_page},
                                                {kNvfp4, kNvfp4, 128, 128, Layout::vllm_page_interleaved},
                                                {kMxfp8, kNvfp4, 96, 64, Layout::vllm_page_interleaved},
                                                {kMxfp4, kMxfp8, 256, 256, Layout::hnd},
                                                {kNvfp4, kMxfp4, 48, 32, Layout::nhd},
                                                {kMxfp8, kMxfp4, 512, 512, Layout::nhd}};
  return cases;
}

// Some slots, in any order, and one token without a slot.
const std::vector<int64_t> kSlots = {11, 0, 23, -1, 4, 5, 6, 7, 16};

// On CUDA a plan compiles a kernel, where a call runs the general one.
Status run_planned(const AttentionPrologueParams& p, const Execution& execution) {
  PROLOGUE_ASSIGN_OR_RETURN(const AttentionProloguePlan plan, AttentionProloguePlan::create(p, p.num_tokens, execution));
  return plan.run(p, execution);
}

enum class Way { kv_write, call, plan };

template <class T>
void check_writes(Backend backend, const FormatCase& c, Way way) {
  const bool fused = way != Way::kv_write;
  Random random(3);
  const auto tokens = static_cast<int64_t>(kSlots.size());
  constexpr int64_t kHeads = HostCache::kHeads;
  HostCache host(c.k, c.v, c.k_dim, c.v_dim, c.layout);
  const std::vector<T> k = heads_of_all_kinds<T>(tokens * kHeads * c.k_dim, random),
                       v = heads_of_all_kinds<T>(tokens * kHeads * c.v_dim, random);
  Arena arena(backend);
  const PlacedCache placed(arena, host);
  const HeadsView k_view = {arena.input(k), kHeads * c.k_dim, c.k_dim}, v_view = {arena.input(v), kHeads * c.v_dim, c.v_dim};
  const IndexView slots = index_view(arena.input(kSlots));
  const Status status = arena.run([&](const Execution& execution) {
    if (!fused) {
      KvWriteParams p;
      p.num_tokens = tokens, p.num_kv_heads = kHeads, p.head_dim = c.k_dim, p.dtype = FloatFormat<T>::dtype;
      p.k = k_view, p.v = v_view, p.cache = placed.view, p.slot_mapping = slots;
      return kv_write(p, execution);
    }
    AttentionPrologueParams p;
    p.num_tokens = tokens, p.num_kv_heads = kHeads, p.head_dim = c.k_dim, p.dtype = FloatFormat<T>::dtype;
    p.k = k_view, p.v = v_view, p.cache = placed.view, p.places.slot_mapping = slots;
    p.k_constant = p.v_constant = 2.0f;
    return way == Way::plan ? run_planned(p, execution) : attention_prologue(p, execution);
  });
  ASSERT_TRUE(status.ok()) << status.message();
  for (int64_t t = 0; t < tokens; ++t) {
    if (kSlots[static_cast<size_t>(t)] < 0) continue;
    for (int64_t h = 0; h < kHeads; ++h) {
      const auto store = [&](HostSide& side, const std::vector<T>& heads) {
        std::vector<float> x;
        for (int64_t i = 0; i < side.head_dim; ++i) {
          x.push_back(to_float(heads[static_cast<size_t>((t * kHeads + h) * side.head_dim + i)]) * (fused ? 2.0f : 1.0f));
        }
        host.store(side, kSlots[static_cast<size_t>(t)], h, x.data());
      };
      store(host.k, k);
      store(host.v, v);
    }
  }
  if (placed.buffer != nullptr) {
    EXPECT_EQ(arena.read(placed.buffer), host.page_buffer);
    return;
  }
  EXPECT_EQ(arena.read(placed.k_scale), host.k.block_scale);
  EXPECT_EQ(arena.read(placed.v_scale), host.v.block_scale);
  EXPECT_EQ(arena.read(placed.k), host.k.data);
  EXPECT_EQ(arena.read(placed.v), host.v.data);
}

TEST_P(BlockScaleTest, StoresTheBitsOfTheRules) {
  for (const FormatCase& c : format_cases()) {
    SCOPED_TRACE(str_cat(kv_format_name(c.k), " ", kv_format_name(c.v), " ", c.k_dim, " ", c.v_dim, " layout ",
                         static_cast<int>(c.layout)));
    for_each_type([&](auto type) {
      for (const Way way : {Way::kv_write, Way::call, Way::plan}) check_writes<decltype(type)>(GetParam(), c, way);
    });
  }
}

// Q, K and V have transforms; lanes of heads of several tensors work in one block. The last two are other kernels on CUDA.
TEST_P(BlockScaleTest, OneSideMayBeOfAnotherFormat) {
  for (const auto& [k_format, v_format] : {std::pair{kNvfp4, KvFormat{DType::int4, KvScaling::token_head}},
                                           {KvFormat{DType::int8, KvScaling::token_head}, kMxfp4},
                                           {KvFormat{DType::f32, KvScaling::none}, kMxfp8},
                                           {computed_format(DType::f32), computed_format(DType::f32)},
                                           {computed_format(DType::int8), computed_format(DType::int8)}}) {
    SCOPED_TRACE(str_cat(kv_format_name(k_format), " ", kv_format_name(v_format)));
    Random random(5);
    constexpr int64_t kTokens = 7, kHeads = 2, kDim = 64, kQHeads = 4;
    const std::vector<float> q = random.normals<float>(kTokens * kQHeads * kDim),
                             k = random.normals<float>(kTokens * kHeads * kDim),
                             v = random.normals<float>(kTokens * kHeads * kDim);
    const std::vector<int64_t> slots = {3, 1, 4, 15, 9, 2, 6};
    const auto run = [&, k_format = k_format, v_format = v_format](Backend backend, Way way) {
      Arena arena(backend);
      AttentionPrologueParams p;
      p.num_tokens = kTokens, p.num_q_heads = kQHeads, p.num_kv_heads = kHeads, p.head_dim = kDim, p.dtype = DType::f32;
      p.q = {arena.input(q), kQHeads * kDim, kDim}, p.k = {arena.input(k), kHeads * kDim, kDim},
      p.v = {arena.input(v), kHeads * kDim, kDim};
      p.hadamard_block = 32, p.v_hadamard_block = 16;
      float* const q_out = arena.output<float>(kTokens * kQHeads * kDim);
      p.q_out = {q_out, kQHeads * kDim, kDim};
      p.places.slot_mapping = index_view(arena.input(slots));
      p.cache.num_pages = 2, p.cache.page_size = 8, p.cache.num_kv_heads = kHeads;
      for (PagedHeads* side : {&p.cache.k, &p.cache.v}) {
        side->format = side == &p.cache.k ? k_format : v_format;
        side->head_dim = kDim;
        side->strides = nhd_strides(8, kHeads, kDim);
        side->data = arena.output<uint8_t>(16 * kHeads * kDim * dtype_bits(side->format.type) / 8);
        if (is_block_scaled(side->format)) {
          const int64_t n = kDim / block_channels(side->format);
          side->scale_strides = nhd_strides(8, kHeads, n);
          side->block_scale = arena.output<uint8_t>(16 * kHeads * n);
        } else if (side->format.scaling == KvScaling::token_head) {
          side->scale_strides = nhd_strides(8, kHeads, 1);
          side->scale = arena.output<float>(16 * kHeads);
        }
      }
      const Status status = arena.run([&](const Execution& execution) {
        return way == Way::plan ? run_planned(p, execution) : attention_prologue(p, execution);
      });
      EXPECT_TRUE(status.ok()) << status.message();
      std::vector<std::vector<unsigned char>> written;
      for (const Arena::Written& each : arena.written()) written.push_back(each.bytes);
      return written;
    };
    EXPECT_EQ(run(GetParam(), Way::call), run(Backend::cpu, Way::call));
    EXPECT_EQ(run(GetParam(), Way::plan), run(Backend::cpu, Way::call));
  }
}

// ---- the Hadamard transform of V ------------------------------------------------------------------------------------------------

TEST_P(BlockScaleTest, TheTransformOfVIsThatOfTheStageAndItsOwnInverse) {
  for (const int64_t dim : {64, 256}) {
    for (const int64_t block : {int64_t{2}, int64_t{16}, int64_t{32}, dim}) {
      SCOPED_TRACE(str_cat(dim, " ", block));
      Random random(9);
      constexpr int64_t kTokens = 5, kHeads = 3;
      const std::vector<float> v = random.normals<float>(kTokens * kHeads * dim);
      Arena arena(GetParam());
      const HeadsView view = {arena.input(v), kHeads * dim, dim};
      const auto out = [&] { return MutableHeadsView{arena.output<float>(kTokens * kHeads * dim), kHeads * dim, dim}; };
      const MutableHeadsView of_prologue = out(), of_stage = out(), back = out();
      const Status status = arena.run([&](const Execution& execution) {
        AttentionPrologueParams p;
        p.num_tokens = kTokens, p.num_kv_heads = kHeads, p.head_dim = dim, p.dtype = DType::f32, p.v = view,
        p.v_out = of_prologue;
        p.v_hadamard_block = block;
        HadamardParams h;
        h.num_tokens = kTokens, h.num_heads = kHeads, h.head_dim = dim, h.dtype = DType::f32, h.block = block;
        h.x = view, h.y = of_stage;
        Status done = attention_prologue(p, execution);
        if (done.ok()) done = hadamard(h, execution);
        h.x = as_input(of_stage), h.y = back;
        return done.ok() ? hadamard(h, execution) : done;
      });
      ASSERT_TRUE(status.ok()) << status.message();
      const auto read = [&](const MutableHeadsView& from) { return arena.read(static_cast<const float*>(from.data)); };
      EXPECT_EQ(read(of_prologue), read(of_stage));
      EXPECT_NE(read(of_prologue), v);
      const std::vector<float> undone = read(back);
      for (size_t i = 0; i < v.size(); ++i) EXPECT_NEAR(undone[i], v[i], 1e-5f);
    }
  }
}

// ---- attention ------------------------------------------------------------------------------------------------------------------

template <class T>
void check_attention(Backend backend, const FormatCase& c, int64_t rows) {
  constexpr int64_t kHeads = HostCache::kHeads, kQHeads = 6, kLength = 19, kGroup = kQHeads / kHeads;
  Random random(static_cast<uint64_t>(17 + rows));
  HostCache host(c.k, c.v, c.k_dim, c.v_dim, c.layout);
  const std::vector<int32_t> pages = {2, 0, 1};
  const auto slot_of = [&](int64_t position) {
    return pages[static_cast<size_t>(position / HostCache::kPageSize)] * HostCache::kPageSize + position % HostCache::kPageSize;
  };
  for (int64_t position = 0; position < kLength; ++position) {
    for (int64_t h = 0; h < kHeads; ++h) {
      for (HostSide* side : {&host.k, &host.v}) {
        const std::vector<float> x = random.normals<float>(side->head_dim);
        if (is_block_scaled(side->format)) {
          host.store(*side, slot_of(position), h, x.data());
        } else {
          for (int64_t i = 0; i < side->head_dim; ++i) {
            host.set_code(*side, slot_of(position), h, i,
                          static_cast<uint8_t>(static_cast<int8_t>(std::lround(20.0f * x[static_cast<size_t>(i)]))));
          }
        }
      }
    }
  }
  const std::vector<T> q = random.normals<T>(rows * kQHeads * c.k_dim);
  Arena arena(backend);
  PagedAttentionParams p;
  p.num_tokens = rows, p.num_seqs = 1, p.num_q_heads = kQHeads, p.head_dim = c.k_dim, p.dtype = FloatFormat<T>::dtype;
  p.scale = 1.0f / std::sqrt(static_cast<float>(c.k_dim));
  p.q = {arena.input(q), kQHeads * c.k_dim, c.k_dim};
  const PlacedCache placed(arena, host);
  p.kv = placed.view;
  p.page_table.block_table = arena.input(pages);
  p.page_table.block_table_stride = p.page_table.max_pages_per_seq = 3;
  p.cu_seqlens_q = arena.input(std::vector<int32_t>{0, static_cast<int32_t>(rows)});
  p.seq_lens = arena.input(std::vector<int32_t>{kLength});
  p.max_seqlen_q = rows, p.max_seq_len = kLength;
  T* const out = arena.output<T>(rows * kQHeads * c.v_dim);
  p.out = {out, kQHeads * c.v_dim, c.v_dim};
  p.workspace_bytes = paged_attention_workspace_bytes(p, backend_device(backend));
  if (p.workspace_bytes > 0) p.workspace = arena.workspace(p.workspace_bytes);
  const Status status = arena.run([&](const Execution& execution) { return paged_attention(p, execution); });
  ASSERT_TRUE(status.ok()) << status.message();
  std::vector<Reference> want;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t q_head = 0; q_head < kQHeads; ++q_head) {
      const int64_t keys = kLength - rows + row + 1, h = q_head / kGroup;
      std::vector<double> weights;
      double sum = 0.0;
      for (int64_t key = 0; key < keys; ++key) {
        double score = 0.0;
        for (int64_t i = 0; i < c.k_dim; ++i) {
          score += static_cast<double>(to_float(q[static_cast<size_t>((row * kQHeads + q_head) * c.k_dim + i)])) *
                   host.value(host.k, slot_of(key), h, i);
        }
        weights.push_back(std::exp(score * static_cast<double>(p.scale)));
        sum += weights.back();
      }
      for (int64_t i = 0; i < c.v_dim; ++i) {
        Reference of_channel;
        for (int64_t key = 0; key < keys; ++key) {
          const double term = weights[static_cast<size_t>(key)] / sum * host.value(host.v, slot_of(key), h, i);
          of_channel.value += term;
          of_channel.scale += 4.0 * std::fabs(term);
        }
        want.push_back(of_channel);
      }
    }
  }
  expect_close(arena.read(out), want, c.v_dim, "out", 16.0 * kDefaultSteps, false);
}

TEST_P(BlockScaleTest, AttentionReadsWhatIsStored) {
  std::vector<FormatCase> cases = format_cases();
  cases.push_back({{DType::int8, KvScaling::token_head}, kNvfp4, 64, 64, Layout::nhd});
  cases.push_back({kNvfp4, {DType::int8, KvScaling::token_head}, 128, 64, Layout::nhd});
  for (const FormatCase& c : cases) {
    SCOPED_TRACE(str_cat(kv_format_name(c.k), " ", kv_format_name(c.v), " ", c.k_dim, " ", c.v_dim, " layout ",
                         static_cast<int>(c.layout)));
    for (const int64_t rows : {1, 2, 19}) {
      check_attention<float>(GetParam(), c, rows);
      check_attention<BFloat16>(GetParam(), c, rows);
    }
  }
}

// ---- refusals -------------------------------------------------------------------------------------------------------------------

TEST(BlockScale, BadFormatsAreRefused) {
  HostCache host(kNvfp4, kNvfp4, 64, 64, Layout::nhd);
  std::vector<float> heads(64 * 2 * 2, 1.0f);
  std::vector<int64_t> slots = {0, 1};
  KvWriteParams valid;
  valid.num_tokens = 2, valid.num_kv_heads = 2, valid.head_dim = 64, valid.dtype = DType::f32;
  valid.k = valid.v = {heads.data(), 128, 64};
  valid.slot_mapping = index_view(slots.data());
  Arena arena(Backend::cpu);
  valid.cache = PlacedCache(arena, host).view;
  using P = KvWriteParams;
  const struct {
    void (*change)(P&);
    const char* message;
  } refusals[] = {
      {[](P& p) {
         p.cache.k.format = {DType::int8, KvScaling::mx};
       },
       "cache.k.format.scaling is mx, but the type is int8: supported are fp8_e4m3 and fp4_e2m1"},
      {[](P& p) {
         p.cache.v.format = {DType::fp8_e4m3, KvScaling::nv};
       },
       "cache.v.format.scaling is nv, but the type is fp8_e4m3: supported is fp4_e2m1"},
      {[](P& p) {
         p.cache.v.format = {DType::fp4_e2m1, KvScaling::token_head};
       },
       "cache.v.format.type is fp4_e2m1, but the scaling is neither mx nor nv"},
      {[](P& p) { p.cache.v.head_dim = 24; },
       "cache.v.head_dim is 24: it must be a multiple of 16, the channels of a block of scaling nv"},
      {[](P& p) { p.cache.k.format.scaling = KvScaling::mx, p.head_dim = p.cache.k.head_dim = 48; },
       "cache.k.head_dim is 48: it must be a multiple of 32, the channels of a block of scaling mx"},
      {[](P& p) { p.cache.k.block_scale = nullptr; }, "cache.k.block_scale is null"},
      {[](P& p) { p.cache.v.scale_strides.head = 3; }, "cache.v.block_scale has the stride 3 where 4 elements lie"},
      {[](P& p) { p.cache.v.block_scale = p.cache.k.block_scale; }, "cache.k.block_scale overlaps cache.v.block_scale"},
      {[](P& p) { p.cache.v.strides.head = 63; },
       "a stride of cache.v is 63: it must be even, two channels of fp4_e2m1 share a byte"},
      {[](P& p) { p.cache.k.block_scale_layout = static_cast<BlockScaleLayout>(2); },
       "cache.k.block_scale_layout is 2: supported are linear and interleaved_4_tokens"},
      {[](P& p) { p.cache.v.block_scale_layout = BlockScaleLayout::interleaved_4_tokens, p.cache.page_size = 6; },
       "cache.v.block_scale_layout is interleaved_4_tokens, the page size 6 and a head has 4 blocks: both must be multiples of "
       "4"},
  };
  for (const auto& [change, message] : refusals) {
    P p = valid;
    change(p);
    const Status status = kv_write(p, {});
    EXPECT_FALSE(status.ok());
    EXPECT_NE(status.message().find(message), std::string::npos) << status.message() << "\n" << message;
  }
  EXPECT_TRUE(kv_write(valid, {}).ok());

  std::vector<float> inv_freq(32, 0.5f);
  ReropeParams moved;
  moved.num_keys = 2;
  moved.cache = valid.cache;
  moved.rope.rotary_dim = 64, moved.rope.source = RopeSource::inv_freq, moved.rope.type = DType::f32,
  moved.rope.inv_freq = inv_freq.data();
  moved.slot_mapping = moved.from_positions = moved.to_positions = index_view(slots.data());
  moved.rope.past_table = PastTable::identity;
  const Status status = rerope(moved, {});
  EXPECT_NE(status.message().find("cache.k.format is nvfp4: keys of block-scaled formats cannot be moved"), std::string::npos)
      << status.message();
}

}  // namespace
}  // namespace prologue::test
