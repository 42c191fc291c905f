#include <utility>

#include "tests/support/prologue_case.h"
#include "tests/support/prologue_choices.h"
#include "tests/support/random.h"
#include "tests/support/types.h"

namespace prologue::test {

namespace {

class Cases {
 public:
  template <class F>
  void add(const F& change) {
    PrologueCase c;
    c.seed = list_.size() + 1;
    change(c);
    list_.push_back(c);
  }
  std::vector<PrologueCase> take() { return std::move(list_); }

 private:
  std::vector<PrologueCase> list_;
};

// Every dimension is varied from a base, then a few dozen seeded mixtures of all of them.
std::vector<PrologueCase> make_prologue_cases() {
  Cases cases;
  const auto add = [&](const auto& change) { cases.add(change); };
  for (const int64_t n : {0, 1, 2, 31, 32, 33, 257}) add([&](PrologueCase& c) { c.num_tokens = n; });
  for (const int64_t n : {700, 5000}) {  // every mapping of the CUDA backend
    add([&](PrologueCase& c) {
      c.num_tokens = n, c.head_dim = 8, c.rotary_dim = 8, c.num_q_heads = 2, c.num_kv_heads = 1, c.page_size = 64;
    });
  }
  for (const auto& [q, kv] : {std::pair{4, 4}, {16, 4}, {32, 4}, {8, 1}, {71, 1}, {3, 5}}) {
    add([&, hq = q, hkv = kv](PrologueCase& c) { c.num_q_heads = hq, c.num_kv_heads = hkv; });
  }
  for (const int64_t page : {1, 3, 64}) add([&](PrologueCase& c) { c.page_size = page; });
  for (const RopeStyle style : {RopeStyle::neox, RopeStyle::interleaved}) {
    for (const int64_t d : {2, 46, 64, 72, 80, 96, 112, 128, 160, 192, 256, 512, 576, 1024}) {
      for (const int64_t r : {int64_t{0}, int64_t{2}, int64_t{16}, int64_t{32}, int64_t{64}, int64_t{72}, int64_t{96}, d}) {
        if (r > d || (r == d && (d == 2 || d == 64 || d == 72 || d == 96))) continue;
        if (r == 0 && style == RopeStyle::interleaved) continue;
        add([&](PrologueCase& c) { c.style = style, c.head_dim = d, c.rotary_dim = r, c.num_q_heads = 4; });
      }
    }
  }
  for (int bits = 1; bits < 8; ++bits) {
    add([&](PrologueCase& c) { c.bias_q = (bits & 1) != 0, c.bias_k = (bits & 2) != 0, c.bias_v = (bits & 4) != 0; });
  }
  for (const CacheLayout layout : {CacheLayout::hnd, CacheLayout::interleaved, CacheLayout::odd}) {
    add([&](PrologueCase& c) { c.layout = layout; });
  }
  for (const Values values : {Values::denormal, Values::huge}) {
    add([&](PrologueCase& c) { c.values = values, c.num_tokens = 17; });
  }
  add([](PrologueCase& c) { c.int64_positions = true, c.int64_slots = false; });

  Random random(2026);
  for (int i = 0; i < 60; ++i) {
    add([&](PrologueCase& c) {
      const auto coin = [&] { return random.integer(0, 1) == 1; };
      c.num_tokens = random.integer(1, 40);
      c.num_kv_heads = random.integer(1, 4);
      c.num_q_heads = c.num_kv_heads * random.integer(1, 8);
      c.head_dim = 2 * random.integer(1, 128);
      c.rotary_dim = coin() ? c.head_dim : 2 * random.integer(0, c.head_dim / 2);
      c.style = coin() ? RopeStyle::neox : RopeStyle::interleaved;
      c.bias_q = coin(), c.bias_k = coin(), c.bias_v = coin();
      c.packed = coin();
      c.in_place = coin();
      c.row_padding = coin() ? random.integer(0, 9) : 0;
      c.head_padding = !c.packed && coin() ? random.integer(0, 9) : 0;
      c.heads_first = !c.packed && coin();
      c.misalign = coin() ? 2 * random.integer(0, 8) : 0;
      c.page_size = random.integer(1, 20);
      c.layout = static_cast<CacheLayout>(random.integer(0, 3));
      c.int64_positions = coin(), c.int64_slots = coin();
    });
  }
  return cases.take();
}

std::vector<PrologueCase> make_feature_cases() {
  Cases cases;
  const auto add = [&](const auto& change) {
    cases.add([&](PrologueCase& c) {
      c.num_tokens = 21;
      c.bias_q = c.bias_k = c.bias_v = true;
      c.token_faults = true;
      change(c);
    });
  };

  // Norms.
  for (const NormPlacement placement : {NormPlacement::before_rope, NormPlacement::after_rope}) {
    for (const NormScope scope : {NormScope::head, NormScope::token}) {
      for (const Weights weights : {Weights::none, Weights::shared, Weights::per_head}) {
        add([&](PrologueCase& c) { c.norm = placement, c.norm_scope = scope, c.weights = weights; });
      }
    }
    for (const bool bias : {false, true}) {
      for (const Weights weights : {Weights::shared, Weights::per_head}) {
        add([&](PrologueCase& c) { c.norm = placement, c.norm_kind = NormKind::layer, c.norm_bias = bias, c.weights = weights; });
      }
    }
    add([&](PrologueCase& c) { c.norm = placement, c.weight_offset = 1.0f, c.eps = 0.5f; });  // Gemma; an eps that shows
    add([&](PrologueCase& c) { c.norm = placement, c.weights = Weights::per_head, c.k_weights = Weights::shared; });
    add([&](PrologueCase& c) { c.norm = placement, c.weights = Weights::none, c.k_weights = Weights::per_head; });
    add([&](PrologueCase& c) {
      c.norm = placement, c.num_q_heads = 40, c.num_kv_heads = 40, c.head_dim = 128, c.norm_scope = NormScope::token;
    });
    for (const int64_t d : {2, 46, 72, 80, 96, 128, 192, 256, 576, 1022, 1024}) {
      add([&](PrologueCase& c) { c.norm = placement, c.head_dim = d, c.rotary_dim = d / 4 * 2, c.weights = Weights::per_head; });
      add([&](PrologueCase& c) { c.norm = placement, c.norm_kind = NormKind::layer, c.head_dim = d, c.rotary_dim = d; });
    }
    add([&](PrologueCase& c) { c.norm = placement, c.values = Values::denormal; });
    for (const Weights weights : {Weights::shared, Weights::per_head}) {
      add([&](PrologueCase& c) { c.norm = placement, c.float_weights = true, c.weights = weights, c.weight_offset = 1.0f; });
      add([&](PrologueCase& c) {
        c.norm = placement, c.float_weights = c.norm_bias = true, c.norm_kind = NormKind::layer, c.weights = weights,
        c.misalign = 4;
      });
      add([&](PrologueCase& c) {
        c.norm = placement, c.float_weights = true, c.norm_scope = NormScope::token, c.weights = weights, c.head_dim = 46,
        c.rotary_dim = 16;
      });
    }
  }
  // One of Q and K has no norm, or another norm than the other.
  constexpr NormPlacement kNone = NormPlacement::none, kBefore = NormPlacement::before_rope, kAfter = NormPlacement::after_rope;
  constexpr CaseNorm kNoNorm = {};
  const CaseNorm others[] = {{kBefore},
                             {kAfter},
                             {kBefore, NormKind::layer, NormScope::head, Weights::per_head, true},
                             {kAfter, NormKind::layer, NormScope::head, Weights::shared},
                             {kBefore, NormKind::rms, NormScope::token, Weights::per_head},
                             {kAfter, NormKind::rms, NormScope::token, Weights::none},
                             {kBefore, NormKind::rms, NormScope::head, Weights::shared, false, true, 1.0f, 0.5f}};
  for (const CaseNorm& other : others) {
    for (const int64_t d : {64, 70}) {
      const auto differs = [&](const auto& change) {
        add([&](PrologueCase& c) { c.head_dim = d, c.rotary_dim = d / 4 * 2, c.k_norm = other, change(c); });
      };
      differs([](PrologueCase& c) { c.norm = kNone; });
      differs([](PrologueCase& c) { c.norm = kNone, c.num_q_heads = 40, c.num_kv_heads = 24; });
      differs([](PrologueCase& c) { c.norm = kBefore, c.in_place = c.kv_in_place = c.k_out = c.v_out = true; });
      differs([](PrologueCase& c) { c.norm = kAfter, c.norm_kind = NormKind::layer, c.weights = Weights::per_head; });
      differs([](PrologueCase& c) { c.norm = kBefore, c.norm_scope = NormScope::token, c.weights = Weights::per_head; });
      add([&](PrologueCase& c) {  // the other way round
        c.head_dim = c.rotary_dim = d, c.k_norm = kNoNorm, c.in_place = c.packed = true, c.norm = other.placement;
        c.norm_kind = other.kind, c.norm_scope = other.scope, c.weights = other.weights, c.norm_bias = other.bias;
      });
    }
  }
  add([](PrologueCase& c) { c.v_norm = true; });
  add([](PrologueCase& c) {
    c.v_norm = true, c.bias_v = false, c.v_is_k = true, c.norm = NormPlacement::before_rope, c.head_dim = 512;
  });
  add([](PrologueCase& c) { c.v_is_k = true, c.kv_type = DType::int8, c.scaling = KvScaling::head; });

  // Rotations.
  for (const RopeStyle style : {RopeStyle::neox, RopeStyle::interleaved}) {
    const auto add_style = [&](const auto& change) { add([&](PrologueCase& c) { c.style = style, change(c); }); };
    for (const int64_t offset : {2, 32, 64}) {
      add_style([&](PrologueCase& c) { c.head_dim = 128, c.rotary_dim = 64, c.rotary_offset = offset; });
      add_style([&](PrologueCase& c) {
        c.head_dim = 576, c.rotary_dim = 64, c.rotary_offset = 512, c.norm = NormPlacement::after_rope;
      });
    }
    add_style([](PrologueCase& c) { c.inverse = true; });
    add_style([](PrologueCase& c) { c.source = RopeSource::per_token, c.rotary_dim = 48; });
    add_style([](PrologueCase& c) { c.source = RopeSource::per_token, c.inverse = true, c.max_position = 0x7fffffff; });
    add_style([](PrologueCase& c) { c.source = RopeSource::inv_freq, c.max_position = 1 << 20; });
    add_style([](PrologueCase& c) {
      c.source = RopeSource::inv_freq, c.max_position = 1 << 20, c.attention_factor = 1.37f, c.rotary_dim = 36;
    });
    add_style(
        [](PrologueCase& c) { c.source = RopeSource::inv_freq, c.max_position = 1 << 20, c.inverse = true, c.num_axes = 3; });
    for (const int64_t axes : {2, 3, 4}) {
      add_style([&](PrologueCase& c) { c.num_axes = axes; });
      add_style(
          [&](PrologueCase& c) { c.num_axes = axes, c.interleaved_axes = true, c.rotary_dim = 40, c.int64_positions = true; });
    }
  }
  add([](PrologueCase& c) { c.rotary_dim = 0, c.norm = NormPlacement::before_rope; });

  // These have tables of every type, in one array or two.
  for (const RopeStyle style : {RopeStyle::neox, RopeStyle::interleaved}) {
    for (const DType type : {DType::f32, DType::f16, DType::bf16}) {
      const auto add_table = [&](const auto& change) {
        add([&](PrologueCase& c) { c.style = style, c.rope_type = type, change(c); });
      };
      add_table([](PrologueCase& c) { c.max_position = 3000; });  // with sines that are subnormal in float16
      add_table([](PrologueCase& c) { c.rope_apart = true, c.inverse = true; });
      add_table([](PrologueCase& c) { c.rope_apart = true, c.rope_holes = 8, c.num_axes = 3, c.interleaved_axes = true; });
      add_table([](PrologueCase& c) { c.rope_holes = 3, c.rotary_dim = 36, c.misalign = 4; });
      add_table([](PrologueCase& c) { c.source = RopeSource::per_token, c.rope_apart = true, c.rope_holes = 1; });
      add_table([](PrologueCase& c) { c.source = RopeSource::per_token, c.rope_holes = 16, c.norm = NormPlacement::after_rope; });
    }
  }

  // These have rotary blocks.
  for (const RopeStyle style : {RopeStyle::neox, RopeStyle::interleaved}) {
    for (const int64_t blocks : {2, 3, 4}) {
      const auto add_blocks = [&](const auto& change) {
        add([&](PrologueCase& c) { c.style = style, c.num_blocks = blocks, c.head_dim = c.rotary_dim = 96, change(c); });
      };
      add_blocks([](PrologueCase&) {});
      add_blocks([&](PrologueCase& c) { c.block_axes = true, c.num_axes = blocks, c.in_place = true; });
      add_blocks([](PrologueCase& c) { c.num_axes = 3, c.rotary_dim = 48, c.rotary_offset = 16, c.int64_positions = true; });
      add_blocks([](PrologueCase& c) { c.source = RopeSource::per_token, c.rope_type = DType::bf16, c.inverse = true; });
      add_blocks([&](PrologueCase& c) {
        c.source = RopeSource::inv_freq, c.max_position = 1 << 20, c.attention_factor = 1.2f;
        c.block_axes = true, c.num_axes = blocks;
      });
      add_blocks([](PrologueCase& c) { c.rope_apart = true, c.rope_holes = 2, c.past_table = PastTable::identity; });
      for (const NormPlacement placement : {NormPlacement::before_rope, NormPlacement::after_rope}) {
        add_blocks([&](PrologueCase& c) { c.norm = placement, c.rotary_dim = 24, c.rotary_offset = 60; });
        add_blocks([&](PrologueCase& c) { c.norm = placement, c.head_dim = 576, c.rotary_dim = 480, c.rotary_offset = 32; });
        add_blocks([&](PrologueCase& c) {
          c.norm = placement, c.head_dim = c.rotary_dim = 120, c.norm_scope = NormScope::token, c.misalign = 2;
        });
      }
      add_blocks(
          [](PrologueCase& c) { c.kv_type = DType::int4, c.scaling = KvScaling::token_head, c.q8 = KvScaling::token_head; });
    }
  }

  // The rotated channels of Q and K are apart.
  for (const RopeStyle style : {RopeStyle::neox, RopeStyle::interleaved}) {
    for (const bool last : {false, true}) {
      const auto split = [&](const auto& change) {
        add([&](PrologueCase& c) {
          c.style = style, c.head_dim = 192, c.rotary_dim = 64, c.rotary_offset = last ? 128 : 0, c.packed = false;
          c.split_q = c.split_k = true, change(c);
        });
      };
      split([](PrologueCase&) {});
      split([](PrologueCase& c) { c.one_k_rope = true, c.v_head_dim = 128, c.bias_q = c.bias_k = false; });
      split([](PrologueCase& c) { c.split_k = false, c.heads_first = true, c.kv_in_place = c.k_out = true; });
      split([](PrologueCase& c) { c.split_q = false, c.in_place = true, c.row_padding = 3, c.k_out = true; });
      split([](PrologueCase& c) { c.one_k_rope = true, c.k_out = c.v_out = true, c.bias_k = false, c.head_padding = 8; });
      split([](PrologueCase& c) {
        c.one_k_rope = true, c.kv_type = DType::fp8_e4m3, c.scaling = KvScaling::tensor, c.q8 = KvScaling::tensor;
      });
      split([](PrologueCase& c) {
        c.head_padding = 1, c.misalign = 6, c.kv_type = DType::uint4, c.scaling = KvScaling::token_head;
      });
      split([](PrologueCase& c) {
        c.past_table = PastTable::identity, c.bias_q = c.bias_k = false, c.max_position = 9, c.one_k_rope = true;
      });
      split([](PrologueCase& c) { c.derive_positions = c.derive_slots = true, c.page_size = 4, c.max_position = 80; });
      for (const NormPlacement placement : {NormPlacement::before_rope, NormPlacement::after_rope}) {
        split([&](PrologueCase& c) { c.norm = placement, c.weights = Weights::per_head, c.one_k_rope = true; });
        split([&](PrologueCase& c) { c.norm = placement, c.norm_scope = NormScope::token, c.per_step = true; });
        split([&](PrologueCase& c) {
          c.norm = placement, c.head_dim = 576, c.rotary_offset = c.rotary_offset > 0 ? 512 : 0, c.num_q_heads = 3;
        });
      }
      split([&](PrologueCase& c) {
        c.head_dim = 46, c.rotary_dim = 12, c.rotary_offset = last ? 34 : 0, c.num_blocks = 2, c.block_axes = true,
        c.num_axes = 2;
      });
    }
  }

  // These derive positions and slots.
  for (const int64_t page : {1, 4, 1024}) {
    for (const Offsets offsets : {Offsets::none, Offsets::one, Offsets::per_sequence}) {
      add([&](PrologueCase& c) {
        c.derive_positions = c.derive_slots = true, c.offsets = offsets, c.page_size = page, c.max_position = 80;
      });
    }
    add([&](PrologueCase& c) { c.derive_slots = true, c.page_size = page; });
    add([&](PrologueCase& c) { c.derive_positions = true, c.page_size = page, c.num_axes = 3, c.max_position = 80; });
    for (const int64_t ring : {1, 5, 24}) {
      add([&](PrologueCase& c) {
        c.derive_positions = c.derive_slots = true, c.ring_size = ring, c.page_size = page, c.max_position = 80;
      });
    }
  }
  for (int i = 0; i < 5; ++i) {
    for (const int64_t ring : {0, 24}) {
      add([&](PrologueCase& c) {
        c.derive_positions = c.derive_slots = c.lengths_after = true, c.num_tokens = 40, c.ring_size = ring, c.page_size = 3;
        c.offsets = i % 2 == 0 ? Offsets::none : Offsets::per_sequence;
      });
    }
    add([](PrologueCase& c) { c.derive_slots = c.lengths_after = true, c.page_size = 4; });
    add([](PrologueCase& c) { c.derive_positions = c.lengths_after = true, c.num_axes = 3, c.max_position = 80; });
    add([&](PrologueCase& c) {
      c.derive_positions = c.derive_slots = c.lengths_after = c.extremes = true, c.page_size = 4, c.num_tokens = 12;
      c.offsets = i % 2 == 0 ? Offsets::per_sequence : Offsets::none, c.int64_positions = i < 3;
    });
  }
  for (const PageForm form : {PageForm::csr, PageForm::csr_with_lengths}) {
    const auto paged = [&](const auto& change) { add([&](PrologueCase& c) { c.page_form = form, change(c); }); };
    for (int i = 0; i < 12; ++i) {
      paged([&](PrologueCase& c) {
        c.derive_positions = c.derive_slots = true, c.num_tokens = 40, c.page_size = 1 + i / 2 * 3;
        c.offsets = i % 2 == 0 ? Offsets::none : Offsets::per_sequence, c.lengths_after = i % 3 == 0;
      });
    }
    for (int i = 0; i < 4; ++i) {
      paged([](PrologueCase& c) { c.derive_slots = true, c.page_size = 4; });
      paged([](PrologueCase& c) { c.derive_positions = true, c.page_size = 4, c.num_axes = 3, c.max_position = 80; });
      paged([](PrologueCase& c) { c.derive_positions = c.k_out = c.v_out = true, c.cached = false, c.page_size = 4; });
      paged([&](PrologueCase& c) {
        c.derive_positions = c.derive_slots = c.extremes = true, c.page_size = 4, c.num_tokens = 12, c.lengths_after = i % 2 == 0;
        c.offsets = Offsets::per_sequence, c.int64_positions = i < 3;
      });
    }
  }
  for (const int64_t ring : {1, 5, 24}) {
    add([&](PrologueCase& c) {
      c.derive_positions = c.derive_slots = true, c.ring_size = ring, c.page_form = PageForm::csr, c.page_size = 4;
    });
  }
  for (const int64_t missing : {1, 13, 20}) {  // slot_mapping ends early
    add([&](PrologueCase& c) { c.tokens_without_slot = missing; });
    add([&](PrologueCase& c) { c.tokens_without_slot = missing, c.k_out = c.v_out = true, c.int64_slots = false; });
    add([&](PrologueCase& c) { c.tokens_without_slot = missing, c.derive_positions = true, c.max_position = 80; });
    add([&](PrologueCase& c) {
      c.tokens_without_slot = missing, c.bias_q = c.bias_k = c.bias_v = false, c.source = RopeSource::per_token;
    });
  }
  for (int i = 0; i < 10; ++i) {
    add([](PrologueCase& c) {
      c.derive_positions = c.derive_slots = true, c.num_tokens = 40, c.offsets = Offsets::per_sequence, c.page_size = 3;
    });
  }
  add([](PrologueCase& c) {
    c.derive_positions = c.derive_slots = true, c.offsets = Offsets::per_sequence, c.int64_positions = true;
  });
  for (const RopeSource source : {RopeSource::table, RopeSource::per_token}) {  // the latter without a bound
    for (const int64_t ring : {0, 5}) {
      for (int i = 0; i < 4; ++i) {
        add([&](PrologueCase& c) {
          c.derive_positions = c.derive_slots = c.extremes = true, c.ring_size = ring, c.source = source;
          c.max_position = source == RopeSource::table ? 40 : 0, c.page_size = 4, c.num_tokens = 12;
          c.offsets = i % 2 == 0 ? Offsets::per_sequence : Offsets::none, c.int64_positions = i < 3;
        });
      }
    }
  }
  for (const PastTable past_table : {PastTable::zero, PastTable::identity}) {
    const auto past = [&](const auto& change) { add([&](PrologueCase& c) { c.past_table = past_table, change(c); }); };
    past([](PrologueCase& c) { c.no_faults = true; });
    past([](PrologueCase& c) { c.bias_q = c.bias_k = false, c.in_place = true; });
    past([](PrologueCase& c) { c.num_axes = 3, c.max_position = 20; });
    past([](PrologueCase& c) { c.source = RopeSource::inv_freq, c.max_position = 30, c.attention_factor = 1.2f; });
    past([](PrologueCase& c) { c.source = RopeSource::per_token, c.num_axes = 2; });
    past([](PrologueCase& c) {
      c.derive_positions = c.derive_slots = true, c.offsets = Offsets::per_sequence, c.max_position = 3;
    });
    past([](PrologueCase& c) { c.kv_type = DType::int4, c.scaling = KvScaling::token_head, c.q8 = KvScaling::token_head; });
    for (const NormPlacement placement : {NormPlacement::before_rope, NormPlacement::after_rope}) {
      past([&](PrologueCase& c) { c.norm = placement, c.rotary_dim = 32, c.rotary_offset = 16, c.k_out = c.v_out = true; });
      past([&](PrologueCase& c) { c.norm = placement, c.per_step = c.inverse = true, c.style = RopeStyle::interleaved; });
    }
  }

  // These have the Hadamard transform: every block, in vectors of every width and heads of one lane to several warps.
  for (const auto& [d, block] : {std::pair{2, 2},
                                 {46, 2},
                                 {64, 2},
                                 {64, 4},
                                 {64, 16},
                                 {64, 64},
                                 {72, 8},
                                 {80, 16},
                                 {96, 32},
                                 {128, 128},
                                 {256, 256},
                                 {512, 512},
                                 {576, 64}}) {
    const auto transformed = [&, head_dim = d, of = block](const auto& change) {
      add([&](PrologueCase& c) { c.head_dim = c.rotary_dim = head_dim, c.hadamard_block = of, change(c); });
    };
    for (const int64_t misalign : {0, 2}) {
      transformed([&](PrologueCase& c) { c.misalign = misalign, c.bias_q = c.bias_k = false; });
      transformed([&](PrologueCase& c) { c.misalign = misalign, c.style = RopeStyle::interleaved; });
      transformed([&](PrologueCase& c) { c.misalign = misalign, c.rotary_dim = c.head_dim / 4 * 2; });
      transformed([&](PrologueCase& c) { c.misalign = misalign, c.rotary_dim = 0, c.bias_q = c.bias_k = false; });
    }
    transformed([&](PrologueCase& c) {
      c.rotary_offset = c.head_dim / 8 * 2, c.rotary_dim = c.head_dim / 4 * 2, c.k_out = c.v_out = true;
    });
    transformed(
        [](PrologueCase& c) { c.kv_type = DType::uint4, c.scaling = KvScaling::token_head, c.q8 = KvScaling::token_head; });
    transformed([](PrologueCase& c) {
      c.kv_type = DType::int8, c.scaling = KvScaling::token_head, c.norm = NormPlacement::after_rope, c.q_scale.constant = 0.3f;
    });
    transformed([](PrologueCase& c) { c.per_step = true, c.norm = NormPlacement::before_rope, c.q_scale.constant = 0.3f; });
  }
  add([](PrologueCase& c) { c.hadamard_block = 64, c.num_q_heads = 0, c.v_is_k = c.v_norm = true, c.bias_v = false; });
  add([](PrologueCase& c) { c.hadamard_block = 64, c.with_k = false, c.v_head_dim = 48; });
  add([](PrologueCase& c) { c.hadamard_block = 32, c.norm = NormPlacement::before_rope, c.norm_scope = NormScope::token; });
  add([](PrologueCase& c) {
    c.hadamard_block = 16, c.in_place = c.k_out = c.kv_in_place = true, c.past_table = PastTable::identity;
  });
  add([](PrologueCase& c) { c.hadamard_block = 16, c.values = Values::denormal; });
  add([](PrologueCase& c) { c.hadamard_block = 64, c.v_hadamard_block = 16, c.v_norm = c.v_out = true, c.v_constant = 0.5f; });
  add([](PrologueCase& c) { c.v_hadamard_block = 16, c.with_k = false, c.v_head_dim = 48, c.per_step = true; });

  // K and V are multiplied by constants.
  for (const auto& [k, v] : {std::pair{1.2f, 1.0f}, {1.0f, 0.707f}, {-0.5f, 3.0f}}) {
    const auto multiplied = [&, of_k = k, of_v = v](const auto& change) {
      add([&](PrologueCase& c) { c.k_constant = of_k, c.v_constant = of_v, change(c); });
    };
    multiplied([](PrologueCase& c) { c.bias_q = c.bias_k = c.bias_v = false; });
    multiplied([](PrologueCase& c) { c.q_scale.constant = 1.2f, c.norm = NormPlacement::after_rope, c.weights = Weights::none; });
    multiplied(
        [](PrologueCase& c) { c.v_norm = c.k_out = c.v_out = true, c.v_head_dim = 48, c.past_table = PastTable::identity; });
    multiplied([](PrologueCase& c) { c.bias_v = false, c.v_is_k = c.k_out = true, c.kv_type = DType::f32; });
    multiplied(
        [](PrologueCase& c) { c.hadamard_block = 16, c.per_step = true, c.norm = NormPlacement::before_rope, c.v_norm = true; });
    multiplied([](PrologueCase& c) { c.kv_in_place = c.k_out = c.v_out = true, c.cached = false, c.rotary_dim = 16; });
    multiplied([](PrologueCase& c) { c.misalign = 2, c.head_dim = 46, c.rotary_dim = 12, c.q8 = KvScaling::token_head; });
    for (const DType type : {DType::int8, DType::fp8_e4m3, DType::uint4}) {
      multiplied([&](PrologueCase& c) {
        c.kv_type = type, c.scaling = KvScaling::token_head, c.derive_positions = c.derive_slots = true;
      });
    }
    multiplied([](PrologueCase& c) { c.kv_type = DType::int4, c.scaling = KvScaling::head, c.values = Values::coarse; });
  }

  // Other groups of heads.
  const auto add_group = [&](PrologueCase& c, PrologueCase group) { c.groups.push_back(std::move(group)); };
  add([&](PrologueCase& c) { add_group(c, gate_of_heads(c)); });
  add([&](PrologueCase& c) { add_group(c, gate_of_heads(c)), c.groups.back().sigmoid = true, c.per_step = true; });
  add([&](PrologueCase& c) {  // a gate for each head, behind V
    PrologueCase gate = plain_group(c.num_q_heads, 1);
    gate.sigmoid = gate.in_place = true;
    add_group(c, gate);
  });
  for (const bool derived : {false, true}) {
    const auto indexed = [&](const auto& change) {
      add([&](PrologueCase& c) {
        c.derive_positions = c.derive_slots = derived, c.token_faults = true, c.num_tokens = 20;
        change(c);
      });
    };
    indexed([&](PrologueCase& c) { c.groups = deepseek_indexer(); });
    indexed([&](PrologueCase& c) { c.groups = deepseek_indexer(), c.misalign = 4, c.per_step = true; });
    indexed([&](PrologueCase& c) { c.groups = deepseek_indexer(), c.num_q_heads = c.num_kv_heads = 0; });
    indexed([&](PrologueCase& c) { c.groups = minimax_indexer(), c.past_table = PastTable::zero, c.max_position = 12; });
    indexed([&](PrologueCase& c) { c.groups = minimax_indexer(), c.groups[0].page_size = 3, c.groups[1].page_size = 64; });
    for (const PastTable past : {PastTable::record, PastTable::zero, PastTable::identity}) {
      indexed([&](PrologueCase& c) {
        c.groups = minimax_indexer();
        for (PrologueCase& group : c.groups) group.max_position = 8, group.past_table = past;
      });
    }
    indexed([&](PrologueCase& c) {
      for (const DType type : {DType::int4, DType::uint4, DType::int8, DType::f32}) {
        PrologueCase group = plain_group(3, 32);
        group.cached = true, group.k_out = false, group.kv_type = type, group.page_size = 5;
        if (type != DType::f32) group.scaling = KvScaling::token_head;
        add_group(c, group);
      }
    });
    indexed([&](PrologueCase& c) {
      c.num_axes = 3, c.groups = minimax_indexer(), c.groups[0].num_axes = 3, c.groups[0].max_position = 20;
    });
  }
  add([&](PrologueCase& c) {
    PrologueCase group = plain_group(2, 7);
    group.bias_q = group.k_out = true, group.q_scale.constant = -1.5f;
    add_group(c, group);
    group.cached = true, group.kv_type = DType::fp8_e4m3;
    add_group(c, group);
  });

  // These have the Q scale, and fp8 Q.
  add([](PrologueCase& c) { c.q_scale.constant = 0.125f; });
  add([](PrologueCase& c) { c.q_scale = {0.5f, PositionScale::llama4, 0.1f, 8.0f}; });
  add([](PrologueCase& c) { c.q_scale = {1.0f, PositionScale::logn, 0.0f, 8.0f}, c.norm = NormPlacement::after_rope; });
  for (const KvScaling scaling : {KvScaling::tensor, KvScaling::token_head}) {
    for (const bool e5m2 : {false, true}) {
      add([&](PrologueCase& c) { c.q8 = scaling, c.q8_e5m2 = e5m2; });
      add([&](PrologueCase& c) { c.q8 = scaling, c.q8_e5m2 = e5m2, c.kv_type = DType::fp8_e4m3, c.bias_q = false; });
    }
    add([&](PrologueCase& c) {
      c.q8 = scaling, c.packed = false, c.heads_first = true, c.head_padding = 3, c.q_scale.constant = 3.0f;
    });
    add([&](PrologueCase& c) {
      c.q8 = scaling, c.head_dim = 46, c.rotary_dim = 16, c.misalign = 6, c.norm = NormPlacement::before_rope;
    });
  }

  // Caches.
  const std::pair<DType, KvScaling> stores[] = {{DType::f32, KvScaling::none},
                                                {DType::f16, KvScaling::none},
                                                {DType::bf16, KvScaling::none},
                                                {DType::fp8_e4m3, KvScaling::none},
                                                {DType::fp8_e4m3, KvScaling::tensor},
                                                {DType::fp8_e4m3, KvScaling::head},
                                                {DType::fp8_e4m3, KvScaling::token_head},
                                                {DType::fp8_e5m2, KvScaling::none},
                                                {DType::fp8_e5m2, KvScaling::tensor},
                                                {DType::fp8_e5m2, KvScaling::token_head},
                                                {DType::int8, KvScaling::tensor},
                                                {DType::int8, KvScaling::head},
                                                {DType::int8, KvScaling::token_head},
                                                {DType::int4, KvScaling::tensor},
                                                {DType::int4, KvScaling::head},
                                                {DType::int4, KvScaling::token_head},
                                                {DType::uint4, KvScaling::token_head}};
  for (const auto& [type, scaling] : stores) {
    const auto stored = [&, kv = type, how = scaling](const auto& change) {
      add([&](PrologueCase& c) { c.kv_type = kv, c.scaling = how, change(c); });
    };
    stored([](PrologueCase& c) { c.bias_v = false; });
    for (const CacheLayout layout : {CacheLayout::hnd, CacheLayout::interleaved, CacheLayout::odd}) {
      stored([&](PrologueCase& c) { c.layout = layout, c.norm = NormPlacement::before_rope; });
    }
    stored([](PrologueCase& c) { c.head_dim = 46, c.rotary_dim = 46, c.misalign = 2, c.page_size = 1; });
    stored([](PrologueCase& c) { c.head_dim = 1024, c.v_head_dim = 1022, c.norm = NormPlacement::before_rope; });
    stored([](PrologueCase& c) {
      c.head_dim = 192, c.v_head_dim = 128, c.rotary_offset = 128, c.style = RopeStyle::interleaved, c.k_out = c.v_out = true;
    });
  }

  for (const auto& [type, scaling] :
       {std::pair{DType::fp8_e4m3, KvScaling::mx}, {DType::fp4_e2m1, KvScaling::mx}, {DType::fp4_e2m1, KvScaling::nv}}) {
    const auto stored = [&, kv = type, how = scaling](const auto& change) {
      add([&](PrologueCase& c) { c.kv_type = kv, c.scaling = how, c.head_dim = c.rotary_dim = 64, change(c); });
    };
    for (const CacheLayout layout : {CacheLayout::nhd, CacheLayout::hnd, CacheLayout::interleaved}) {
      stored([&](PrologueCase& c) { c.layout = layout, c.norm = NormPlacement::before_rope, c.bias_v = false; });
    }
    stored([](PrologueCase& c) { c.head_dim = c.rotary_dim = 256, c.v_head_dim = 96, c.k_out = c.v_out = true; });
    stored([](PrologueCase& c) { c.head_dim = 96, c.rotary_dim = 40, c.style = RopeStyle::interleaved, c.hadamard_block = 16; });
    stored([](PrologueCase& c) { c.derive_positions = c.derive_slots = true, c.v_constant = 0.3f, c.num_tokens = 20; });
    stored([](PrologueCase& c) { c.head_dim = c.rotary_dim = 128, c.with_k = false, c.layout = CacheLayout::odd; });
  }

  // What is there and what is not.
  add([](PrologueCase& c) { c.num_kv_heads = 0, c.norm = NormPlacement::before_rope; });
  add([](PrologueCase& c) { c.num_q_heads = 0; });
  add([](PrologueCase& c) { c.with_k = false; });
  add([](PrologueCase& c) { c.with_v = false, c.kv_type = DType::fp8_e4m3, c.scaling = KvScaling::tensor; });
  add([](PrologueCase& c) { c.num_q_heads = 0, c.with_k = false, c.v_norm = true; });
  add([](PrologueCase& c) { c.cached = false, c.k_out = c.v_out = true; });
  add([](PrologueCase& c) { c.cached = false, c.with_v = false, c.k_out = true, c.kv_in_place = c.in_place = true; });
  for (const bool packed : {false, true}) {
    add([&](PrologueCase& c) { c.packed = packed, c.k_out = c.v_out = true; });
    add([&](PrologueCase& c) { c.packed = packed, c.k_out = c.v_out = true, c.kv_in_place = c.in_place = true; });
    add([&](PrologueCase& c) {
      c.packed = packed, c.k_out = c.v_out = c.in_place = true, c.v_head_dim = 32, c.norm = NormPlacement::after_rope;
    });
    add([&](PrologueCase& c) {
      c.packed = packed, c.k_out = c.kv_in_place = true, c.bias_k = false, c.rotary_dim = 16, c.rotary_offset = 8;
    });
  }

  // Values are rounded where the stages store them.
  for (const NormPlacement placement : {NormPlacement::none, NormPlacement::before_rope, NormPlacement::after_rope}) {
    add([&](PrologueCase& c) {
      c.per_step = true, c.norm = placement, c.v_norm = true, c.q_scale.constant = 0.3f, c.k_out = true;
    });
    add([&](PrologueCase& c) {
      c.per_step = true, c.norm = placement, c.kv_type = DType::int8, c.scaling = KvScaling::token_head;
    });
  }
  return cases.take();
}

}  // namespace

const std::vector<PrologueCase>& prologue_cases() {
  static const std::vector<PrologueCase> cases = make_prologue_cases();
  return cases;
}

const std::vector<PrologueCase>& feature_cases() {
  static const std::vector<PrologueCase> cases = make_feature_cases();
  return cases;
}

PrologueCase random_case(uint64_t seed) {
  Random random(seed * 0x9e3779b97f4a7c15ull + 11);
  const auto coin = [&] { return random.integer(0, 1) == 1; };
  const auto rarely = [&] { return random.integer(0, 7) == 0; };
  CaseSizes sizes;
  sizes.num_tokens = rarely() ? random.integer(0, 40) : random.integer(1, 9);
  sizes.num_kv_heads = rarely() ? 0 : random.integer(1, 3);
  sizes.num_q_heads = sizes.num_kv_heads > 0 && rarely() ? 0 : std::max<int64_t>(sizes.num_kv_heads, 1) * random.integer(1, 4);
  sizes.head_dim = rarely() ? 2 * random.integer(1, kMaxHeadDim / 2)
                   : coin() ? 8 * random.integer(1, 16)
                            : 2 * random.integer(1, 64);
  sizes.v_head_dim = rarely() ? 2 * random.integer(1, rarely() ? kMaxHeadDim / 2 : 80) : 0;
  PrologueCase c = choose_case(random, CaseOdds::any, sizes);
  if (random.integer(0, 5) == 0) choose_groups(random, c);
  c.seed = seed;
  return c;
}

}  // namespace prologue::test
