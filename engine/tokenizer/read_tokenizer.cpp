#include <prologue/engine/tokenizer/read_tokenizer.h>

#include <prologue/engine/gguf/gguf_checkpoint.h>
#include <prologue/engine/gguf/tokenizer_data.h>
#include <prologue/engine/huggingface/model_directory.h>
#include <prologue/engine/huggingface/tokenizer_files.h>

namespace prologue {

Result<TokenizerData> read_tokenizer(const Checkpoint& checkpoint) {
  if (const auto* gguf = dynamic_cast<const GgufCheckpoint*>(&checkpoint)) return read_tokenizer_data(gguf->file());
  if (const auto* hf = dynamic_cast<const HuggingFaceDirectory*>(&checkpoint)) return read_huggingface_tokenizer(hf->directory());
  return unsupported(checkpoint.path(), ": the tokenizer of a checkpoint of this format is not supported");
}

}  // namespace prologue
