// Reads the tokenizer data of a GGUF file.
#pragma once

#include <string>
#include <string_view>

#include <prologue/engine/gguf/gguf.h>
#include <prologue/engine/tokenizer/tokenizer_data.h>
#include <prologue/kernels/base/status.h>

namespace prologue {

// Reads tokenizer.ggml.* and tokenizer.chat_template: byte-level BPE (tokenizer.ggml.model "gpt2") and SentencePiece's BPE ("llama"). A
// missing key gets the default of TokenizerData, but add_bos_token and add_space_prefix are true by default for "llama", and add_bos_token
// is for the pre-tokenizers of Llama 3 and of Mistral ("tekken").
//
// As llama.cpp does, more tokens than the keys name end a generation: those of a list of texts ("<|endoftext|>", "<|eot_id|>"). They, and
// the markers that begin the messages of chats ("<|im_start|>"), are control tokens, whatever type the file gives them. A token without a
// text is unused.
//
// not_found: no model, no tokens, BPE without merges or a pre-tokenizer, or SentencePiece's without scores. unsupported: another model, an unknown
// pre-tokenizer (tokenizer.ggml.pre), or the file requires a token appended to every text (add_eos_token, add_sep_token), which would
// change the result. data_loss: a merge is not two tokens. Tokenizer::create checks that the parts are consistent.
Result<TokenizerData> read_tokenizer_data(const GgufFile& file);
Result<TokenizerData> read_tokenizer_data(const std::string& path);

// Makes `data` a byte-level BPE with the pre-tokenizer of this name (tokenizer.ggml.pre): the model, the steps, add_bos.
Status set_gguf_pre_tokenizer(std::string_view name, TokenizerData& data);

}  // namespace prologue
