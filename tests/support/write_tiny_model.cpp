// write_tiny_model PATH CONTEXT [TOP_K]: the model of tiny_llama() with a context of so many tokens, and a top-k that its file recommends, for
// tests of programs in other languages.
#include <cstdio>
#include <cstdlib>

#include "tests/support/gguf_writer.h"

int main(int argc, char** argv) {
  if (argc != 3 && argc != 4) return std::fputs("usage: write_tiny_model PATH CONTEXT [TOP_K]\n", stderr), 2;
  prologue::test::TinyLlamaOptions options;
  options.context_length = std::atoi(argv[2]);
  if (argc == 4) options.extra = [&](auto& writer) { writer.add("general.sampling.top_k", int32_t{std::atoi(argv[3])}); };
  return prologue::test::write_tiny_llama(argv[1], options) ? 0 : 1;
}
