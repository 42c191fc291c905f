// Tests what the llama loader makes of a file's rope.scaling keys, seen in the table it builds.
#include <gtest/gtest.h>

#include <cmath>

#include <prologue/engine/gguf/gguf_checkpoint.h>
#include <prologue/engine/model/load_model.h>

#include "tests/support/gguf_writer.h"

namespace prologue {
namespace {

using test::GgufWriter;

constexpr int64_t kHeadDim = 16;
constexpr int64_t kContext = 512;

Result<Model> load(std::function<void(GgufWriter&)> extra) {
  test::TinyLlamaOptions options;
  options.num_layers = 1;
  options.extra = std::move(extra);
  PROLOGUE_ASSIGN_OR_RETURN(GgufFile file, GgufFile::from_bytes(test::tiny_llama(options).bytes()));
  return load_model(GgufCheckpoint(std::move(file)), DType::f32, {}, {});
}

void expect_table(const RopeScaling& scaling, std::function<void(GgufWriter&)> extra) {
  const auto model = load(std::move(extra));
  ASSERT_TRUE(model.ok()) << model.status().message();
  RopeConfig rope;
  rope.rotary_dim = kHeadDim;
  rope.scaling = scaling;
  const auto frequencies = rope_frequencies(rope, kContext, RopePrecision::reference);
  ASSERT_TRUE(frequencies.ok()) << frequencies.status().message();
  ASSERT_TRUE(model->rope_tables.front()->reserve(kContext, {}).ok());
  const float* table = model->rope_tables.front()->cos_sin();
  EXPECT_EQ(std::vector<float>(table, table + kContext * kHeadDim),
            *rope_cos_sin(*frequencies, kContext, RopePrecision::reference));
}

TEST(LlamaRope, NoneAndLinear) {
  expect_table(DefaultRope{}, [](GgufWriter&) {});
  expect_table(DefaultRope{}, [](GgufWriter& w) { w.add("llama.rope.scaling.type", "none"); });
  expect_table(LinearRope{4.0}, [](GgufWriter& w) {
    w.add("llama.rope.scaling.type", "linear");
    w.add("llama.rope.scaling.factor", 4.0f);
  });
  expect_table(LinearRope{4.0}, [](GgufWriter& w) { w.add("llama.rope.scaling.factor", 4.0f); });
  expect_table(DefaultRope{}, [](GgufWriter& w) { w.add("llama.rope.scaling.factor", 0.0f); });
}

TEST(LlamaRope, Yarn) {
  YarnRope yarn;
  yarn.factor = 4.0;
  yarn.original_max_position = kContext;
  expect_table(yarn, [](GgufWriter& w) {
    w.add("llama.rope.scaling.type", "yarn");
    w.add("llama.rope.scaling.factor", 4.0f);
  });
  yarn.original_max_position = 128;
  expect_table(yarn, [](GgufWriter& w) {
    w.add("llama.rope.scaling.type", "yarn");
    w.add("llama.rope.scaling.factor", 4.0f);
    w.add("llama.rope.scaling.original_context_length", uint32_t{128});
  });
  yarn.attention_factor = 0.5 * (0.1 * std::log(4.0) + 1.0) / (0.1 * 0.75 * std::log(4.0) + 1.0);
  expect_table(yarn, [](GgufWriter& w) {
    w.add("llama.rope.scaling.type", "yarn");
    w.add("llama.rope.scaling.factor", 4.0f);
    w.add("llama.rope.scaling.original_context_length", uint32_t{128});
    w.add("llama.rope.scaling.attn_factor", 0.5f);
    w.add("llama.rope.scaling.yarn_log_multiplier", 0.75f);
  });
}

TEST(LlamaRope, RefusesTheRestByName) {
  const auto message = [](const char* type, const char* key, float value) {
    return load([=](GgufWriter& w) {
             w.add("llama.rope.scaling.type", type);
             w.add(key, value);
           })
        .status()
        .message();
  };
  EXPECT_EQ(message("longrope", "llama.rope.scaling.factor", 4.0f),
            "memory: llama.rope.scaling.type is 'longrope': only \"none\", \"linear\" and \"yarn\" are supported");
  EXPECT_EQ(message("none", "llama.rope.scaling.factor", 4.0f),
            "memory: the key llama.rope.scaling.factor changes the result, and the llama loader does not know it");
  EXPECT_EQ(message("yarn", "llama.rope.scaling.yarn_ext_factor", 0.5f),
            "memory: the key llama.rope.scaling.yarn_ext_factor changes the result, and the llama loader does not know it");
  EXPECT_EQ(message("yarn", "llama.rope.scaling.factor", 0.5f), "rope: the YaRN factor is 0.5: it must be a number not below 1");
  EXPECT_EQ(message("linear", "llama.rope.scaling.factor", -2.0f),
            "rope: the linear factor is -2: it must be a number not below 1");
}

}  // namespace
}  // namespace prologue
