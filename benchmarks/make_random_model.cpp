// Writes a model file with random weights, for benchmarks where the real one cannot be had:
//   make_random_model --shape 8b --format q4_k_m --out /dev/shm/8b.gguf
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "benchmarks/engine/random_model.h"

int main(int argc, char** argv) {
  std::vector<std::string> names;
  for (const auto& shape : prologue::bench::model_shapes()) names.push_back(shape.name);
  std::string name, path, format = "bfloat16";
  uint64_t seed = 0;
  CLI::App app("Writes a GGUF file or a Hugging Face directory with random weights in the shape of a model.",
               "make_random_model");
  app.add_option("--shape", name,
                 "smollm2: SmolLM2 135M; 1b: Llama 3.2 1B; 8b, 70b: Llama 3.1; tiny: to try a program; "
                 "gpt-oss-20b, qwen3-30b-a3b: a Mixtral with the sizes of these mixtures of experts")
      ->required()
      ->check(CLI::IsMember(names));
  app.add_option("--format", format,
                 "of the matrices: bfloat16, a block format of GGUF, or q4_k_m, llama.cpp's mixture; rows that are not whole "
                 "blocks of a k format get another format, as llama.cpp does it; f8_e4m3, f8_e4m3_rows, i8, i4_32, i4_64 and "
                 "i4_128 (GPTQ), nvfp4_modelopt: "
                 "the matrices of the layers of a "
                 "Hugging Face directory")
      ->check(CLI::IsMember(prologue::bench::model_formats()))
      ->capture_default_str();
  int64_t num_layers = 0;
  app.add_option("--layers", num_layers, "so many layers instead of the shape's; 0 = as it has")->check(CLI::NonNegativeNumber);
  app.add_option("--out", path, "the file to write, or the directory")->required()->type_name("PATH");
  app.add_option("--seed", seed, "of the weights")->capture_default_str();
  CLI11_PARSE(app, argc, argv);

  const auto num_threads = static_cast<int32_t>(std::max(1u, std::thread::hardware_concurrency()));
  for (prologue::bench::ModelShape shape : prologue::bench::model_shapes()) {
    if (shape.name != name) continue;
    if (num_layers > 0) shape.num_layers = num_layers, shape.name = prologue::str_cat(name, ", ", num_layers, " layers");
    const prologue::Status status = prologue::bench::write_random_model(shape, seed, path, num_threads, format);
    if (status.ok()) return 0;
    std::fprintf(stderr, "make_random_model: %s\n", status.message().c_str());
  }
  return 1;
}
