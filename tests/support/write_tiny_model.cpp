// write_tiny_model PATH CONTEXT: the model of tiny_llama() with a context of so many tokens, for tests of programs in other languages.
#include <cstdio>
#include <cstdlib>

#include "tests/support/gguf_writer.h"

int main(int argc, char** argv) {
  if (argc != 3) return std::fputs("usage: write_tiny_model PATH CONTEXT\n", stderr), 2;
  prologue::test::TinyLlamaOptions options;
  options.context_length = std::atoi(argv[2]);
  return prologue::test::write_tiny_llama(argv[1], options) ? 0 : 1;
}
