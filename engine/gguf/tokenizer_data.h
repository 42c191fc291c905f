// The tokenizer that lies in a GGUF file.
#pragma once

#include <string>

#include <prologue/engine/gguf/gguf.h>
#include <prologue/engine/tokenizer/tokenizer.h>
#include <prologue/kernels/base/status.h>

namespace prologue {

// Reads tokenizer.ggml.* and tokenizer.chat_template. What the file leaves out stays at its default, except add_bos: files with
// the pre-tokenizer "llama-bpe" that do not say whether BOS is added mean that it is.
//
// not_found: no model or no tokens, or a BPE without merges. unsupported: the file wants a token appended to every text
// (add_eos_token, add_sep_token), which would change the result. Whether the parts fit together is for Tokenizer::create to say.
Result<TokenizerData> read_tokenizer_data(const GgufFile& file);
Result<TokenizerData> read_tokenizer_data(const std::string& path);

}  // namespace prologue
