// Reads the tokenizer of a model in Hugging Face's layout.
#pragma once

#include <string>
#include <string_view>

#include <prologue/engine/tokenizer/tokenizer_data.h>
#include <prologue/kernels/base/status.h>

namespace prologue {

// Reads, from `directory`:
//   tokenizer.json            the tokenizer itself; this file must be there
//   tokenizer_config.json     BOS and EOS, add_bos_token, add_eos_token, chat_template
//   chat_template.jinja       the chat template; goes before that of tokenizer_config.json
//   special_tokens_map.json   BOS and EOS, where tokenizer_config.json has none
//   generation_config.json    eos_token_id: one or more tokens that end a generation
//   config.json               eos_token_id, where generation_config.json has none
//
// BOS is added if tokenizer_config.json has add_bos_token: true, or has no add_bos_token and the template in tokenizer.json begins
// with a special token; several of them are added all. The same holds for EOS, at the end. A token without a text is unused. Of
// several named chat templates, the one named 'default' is taken.
//
// not_found: there is no tokenizer.json. data_loss: a file is no JSON, is nested deeper than 64, or a part of it is not what it must be.
// unsupported: a file has more than 256 MiB; or tokenizer.json has a part that is not known here, which the message names.
Result<TokenizerData> read_huggingface_tokenizer(const std::string& directory);

// Does the same with only the text of a tokenizer.json. Messages have `name` instead of its path.
Result<TokenizerData> parse_tokenizer_json(std::string_view text, const std::string& name = "tokenizer.json");

}  // namespace prologue
