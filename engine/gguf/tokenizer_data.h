// Reads the tokenizer data of a GGUF file.
#pragma once

#include <string>

#include <prologue/engine/gguf/gguf.h>
#include <prologue/engine/tokenizer/tokenizer.h>
#include <prologue/kernels/base/status.h>

namespace prologue {

// Reads tokenizer.ggml.* and tokenizer.chat_template. A missing key gets the default of TokenizerData. The exception is add_bos: it is
// true if the file does not have it and the pre-tokenizer is "llama-bpe".
//
// not_found: no model, no tokens, or BPE without merges. unsupported: the file requires a token appended to every text
// (add_eos_token, add_sep_token), which would change the result. Tokenizer::create checks that the parts are consistent.
Result<TokenizerData> read_tokenizer_data(const GgufFile& file);
Result<TokenizerData> read_tokenizer_data(const std::string& path);

}  // namespace prologue
