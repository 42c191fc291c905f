#include <prologue/engine/model/families/families.h>

namespace prologue {

namespace {

constexpr auto kHuggingFace = Checkpoint::Format::huggingface;
constexpr auto kGguf = Checkpoint::Format::gguf;

constexpr Family kFamilies[] = {
    {"llama", kHuggingFace, read_llama},
    {"mistral", kHuggingFace, read_mistral},
    {"mixtral", kHuggingFace, read_mixtral},
    {"smollm3", kHuggingFace, read_smollm3},
    {"qwen2", kHuggingFace, read_qwen2},
    {"qwen3", kHuggingFace, read_qwen3},
    {"qwen3_moe", kHuggingFace, read_qwen3_moe},
    {"qwen2_vl", kHuggingFace, read_qwen2_vl},
    {"qwen2_vl_text", kHuggingFace, read_qwen2_vl},
    {"qwen3_vl", kHuggingFace, read_qwen3_vl},
    {"qwen3_vl_text", kHuggingFace, read_qwen3_vl},
    {"gemma2", kHuggingFace, read_gemma2},
    {"gemma3", kHuggingFace, read_gemma3},
    {"gemma3_text", kHuggingFace, read_gemma3},
    {"gpt_oss", kHuggingFace, read_gpt_oss},
    {"gpt_neox", kHuggingFace, read_gpt_neox},
    {"gptj", kHuggingFace, read_gptj},
    {"phi", kHuggingFace, read_phi},
    {"phi3", kHuggingFace, read_phi3},
    {"stablelm", kHuggingFace, read_stablelm},
    {"glm4", kHuggingFace, read_glm4},
    {"olmo2", kHuggingFace, read_olmo2},
    {"cohere", kHuggingFace, read_cohere},
    {"cohere2", kHuggingFace, read_cohere2},
    {"llama4_text", kHuggingFace, read_llama4},

    {"llama", kGguf, read_llama_gguf},
    {"smollm3", kGguf, read_smollm3_gguf},
    {"qwen2", kGguf, read_qwen2_gguf},
    {"qwen3", kGguf, read_qwen3_gguf},
    {"qwen3moe", kGguf, read_qwen3_moe_gguf},
    {"gemma2", kGguf, read_gemma2_gguf},
    {"gemma3", kGguf, read_gemma3_gguf},
    {"gptneox", kGguf, read_gpt_neox_gguf},
    {"gpt-oss", kGguf, read_gpt_oss_gguf},
    {"phi2", kGguf, read_phi2_gguf},
    {"phi3", kGguf, read_phi3_gguf},
};

}  // namespace

std::span<const Family> families() { return kFamilies; }

}  // namespace prologue
