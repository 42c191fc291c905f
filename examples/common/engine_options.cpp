#include "engine_options.h"

#include <algorithm>
#include <cstdio>
#include <limits>
#include <map>
#include <string_view>
#include <thread>

#include <prologue/kernels/base/kv_types.h>

#include "flags.h"

namespace examples {

using namespace prologue;

namespace {

// Reads "TYPE" or "K,V". Returns an empty string if there is no error.
std::string set_cache_types(const std::string& text, EngineOptions& engine) {
  if (text == "auto") return {};
  const size_t comma = text.find(',');
  const KvFormat k = kv_format_of(std::string_view(text).substr(0, comma));
  const KvFormat v = comma == std::string::npos ? k : kv_format_of(std::string_view(text).substr(comma + 1));
  if (k.type == DType::unset || v.type == DType::unset) {
    return str_cat("--kv-cache-dtype is ", in_quotes(text),
                   ": it must be auto, a type, or the types of K and V with a comma between ", "them; supported are ",
                   kv_format_names());
  }
  engine.kv_format = k;
  engine.v_format = v;
  return {};
}

}  // namespace

EngineFlags::EngineFlags(Flags& flags, EngineOptions& options, const std::string& context_note) : options_(options) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  constexpr int64_t kMaxInt = std::numeric_limits<int32_t>::max();
  const int32_t num_cpus = std::max(1, static_cast<int32_t>(std::thread::hardware_concurrency()));
  CLI::App& app = flags.app();
  app.add_option("--model", options.model_path, "the model: a GGUF file, or a directory as Hugging Face has it")
      ->required()
      ->type_name("PATH")
      ->group("Input");
  context_ = flags.number<int64_t>(
      "--context", options.context_length, {0, kMax, "0 = the model's"},
      "tokens of one prompt and its output together, at most; 0 = the model's, up to 262144; if there can be only fewer, "
      "a line on stderr says so" +
          context_note);
  for (CLI::Option* option :
       {flags.choice("--device", device_, {"auto", "cpu", "cuda"}, "auto: cuda if there is a GPU, else cpu"),
        flags.choice(
            "--dtype", dtype_, {"auto", "float32", "bfloat16", "float16"},
            "type of weights and activations; auto: bfloat16 on CUDA, and on the CPU float32 with quantised weights as the file "
            "has them"),
        app.add_flag("--keep-quantized", keep_quantized_,
                     "quantised weights stay as the file has them, and --dtype is the type of activations: less memory; on CUDA "
                     "large models are faster for few sequences, slower for many and for prompts"),
        flags.choice(
            "--activations", activations_, {"auto", "16bit", "fp8"},
            "of prompts, with weights that stay float8: fp8 quantises them, too (W8A8), with a scale per token or per 128 "
            "channels of it; 16bit: as --dtype; auto: on CUDA fp8 if the model's files say so"),
        app.add_option("--kv-cache-dtype", kv_cache_dtype_,
                       str_cat("type of the KV cache, or one for K and one for V: ", kv_format_names(),
                               "; auto: as --dtype; fp8 and integers have a scale per token and head, mxfp8, mxfp4 and nvfp4 one "
                               "per block of channels"))
            ->type_name("TYPE[,TYPE]")
            ->capture_default_str(),
        flags.number<int64_t>("--hadamard-block", options.hadamard_block, {0, 512, "0 = off"},
                              "Hadamard transform of Q and K in blocks of N channels: a quantised K loses less; 0 = off"),
        flags.number<int64_t>("--v-hadamard-block", options.v_hadamard_block, {0, 512, "0 = off"},
                              "the same of V, undone on attention's output; 0 = off"),
        flags.number<int64_t>("--tensor-parallel", options.tensor_parallel, {1, kMaxRanks},
                              "ranks that share the model: so many GPUs, or on the CPU so many groups of threads"),
        flags.number<int64_t>("--page-size", options.page_size, {1, 1024}, "tokens per page of the KV cache"),
        context_,
        flags.size("--kv-memory", options.kv_memory, 0, "memory of the KV cache, such as 8G; 0 = chosen from what is free"),
        flags.choice("--prefix-cache", prefix_cache_, {"on", "off"}, "prompts that begin alike share their part of the KV cache"),
        flags.number<int64_t>("--parallel", options.max_seqs, {0, kMaxInt, "0 = chosen"},
                              "sequences that are computed together, at most; 0 = 256 on CUDA, 32 on the CPU"),
        flags.number<int64_t>("--max-step-tokens", options.max_step_tokens, {0, kMaxInt, "0 = chosen"},
                              "tokens of one step, at most: longer prompts are read in chunks; 0 = chosen"),
        app.add_flag("--batch-invariant", options.batch_invariant, "the bits of an output do not depend on what runs beside it"),
        flags.choice(
            "--speculate", speculate_, {"off", "ngram"},
            "verify several tokens a step, as far as it pays: ngram guesses those that followed the last ones earlier in the "
            "text, or in a request's prediction; the tokens are the same"),
        app.add_option("--draft", options.draft_model_path,
                       "the same, with the guesses of a small model that has the same tokens: a GGUF file or a directory")
            ->type_name("PATH"),
        flags.number<int64_t>("--max-drafts", options.max_drafts, {1, kMaxDrafts},
                              "with --speculate or --draft: tokens that are guessed of a sequence in a step, at most"),
        flags.number<int32_t>("--threads", options.num_threads, {0, std::max(64, num_cpus), "0 = one per CPU"},
                              "CPU threads; 0 = one per CPU"),
        app.add_flag("--no-cuda-graphs", no_cuda_graphs_, "launch the kernels of every step one by one"),
        app.add_flag("--no-overlap", no_overlap_, "wait for the tokens of a step before the next one is prepared"),
        app.add_flag("--unfused", unfused_, "run the graph without the fused prologue"),
        app.add_flag("--unfused-projections", unfused_projections_,
                     "on a GPU, run the norms, activations and residuals of steps of few tokens, and the prologue of all, as "
                     "kernels of their own"),
        flags.choice("--rounding", rounding_, {"once", "per_step"},
                     "of the fused prologue: once, or per_step as the unfused nodes round")}) {
    option->group("Execution");
  }
}

bool EngineFlags::has_context() const { return context_->count() > 0; }

std::string EngineFlags::apply() {
  static const std::map<std::string, Device> kDevices = {{"cpu", Device::cpu}, {"cuda", Device::cuda}};
  static const std::map<std::string, DType> kTypes = {
      {"float32", DType::f32}, {"bfloat16", DType::bf16}, {"float16", DType::f16}};
  if (device_ != "auto") options_.device = kDevices.at(device_);
  if (dtype_ != "auto") options_.dtype = kTypes.at(dtype_);
  if (keep_quantized_) options_.keep_quantized = true;
  if (activations_ == "16bit") options_.activations = ActivationQuantization::as_dtype;
  if (activations_ == "fp8") options_.activations = ActivationQuantization::fp8;
  options_.prefix_cache = prefix_cache_ == "on";
  options_.fused = !unfused_;
  options_.fused_projections = !unfused_projections_;
  options_.cuda_graphs = !no_cuda_graphs_;
  options_.overlap = !no_overlap_;
  if (speculate_ == "ngram") options_.speculation = Speculation::prompt_lookup;
  if (!options_.draft_model_path.empty()) {
    if (speculate_ == "ngram") return "--speculate is ngram, and there is a --draft: only one of them can guess";
    options_.speculation = Speculation::draft_model;
  }
  if (rounding_ == "per_step") options_.rounding = Rounding::per_step;
  return set_cache_types(kv_cache_dtype_, options_);
}

std::string bytes_text(int64_t num_bytes) {
  const double megabytes = static_cast<double>(num_bytes) * 1e-6;
  const bool giga = megabytes >= 999.5;
  char text[32];
  std::snprintf(text, sizeof text, giga || megabytes < 9.95 ? "%.1f" : "%.0f", giga ? megabytes * 1e-3 : megabytes);
  return str_cat(text, giga ? " GB" : " MB");
}

std::string types_of(const Engine& engine) {
  return str_cat(dtype_name(engine.dtype()), ", weights as ", engine.weight_types(), ", ", bytes_text(engine.weight_bytes()),
                 engine.quantizes_activations() ? ", prompts with fp8 activations" : "",
                 engine.num_ranks() > 1 ? str_cat(", on ", engine.num_ranks(), " ranks over ", engine.transport()) : "");
}

std::vector<std::string> notes_about(const Engine& engine, int64_t asked_context) {
  std::vector<std::string> notes = engine.warnings();
  if (const int64_t context = engine.context_length(); context < asked_context) {
    notes.push_back(str_cat("--context is ", asked_context, ": it became ", context,
                            context == engine.config().longest_context()
                                ? ", the most that the model supports"
                                : ", for which the memory of the KV cache is enough (--kv-memory)"));
  }
  return notes;
}

}  // namespace examples
