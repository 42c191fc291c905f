// Reads the tokenizer of a checkpoint, whatever its format is.
#pragma once

#include <prologue/engine/checkpoint/checkpoint.h>
#include <prologue/engine/tokenizer/tokenizer.h>

namespace prologue {

// unsupported: a checkpoint of an unknown format. Otherwise as read_tokenizer_data and read_huggingface_tokenizer.
Result<TokenizerData> read_tokenizer(const Checkpoint& checkpoint);

}  // namespace prologue
