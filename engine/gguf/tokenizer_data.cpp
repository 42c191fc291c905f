#include <prologue/engine/gguf/tokenizer_data.h>

#include <prologue/kernels/base/host/out_of_memory.h>

namespace prologue {

namespace {

Result<TokenizerData> read_keys(const GgufFile& file) {
  TokenizerData data;
  PROLOGUE_ASSIGN_OR_RETURN(data.model, file.get<std::string>("tokenizer.ggml.model"));
  PROLOGUE_ASSIGN_OR_RETURN(data.pre, file.get_or<std::string>("tokenizer.ggml.pre", {}));
  PROLOGUE_ASSIGN_OR_RETURN(data.tokens, file.get<std::vector<std::string>>("tokenizer.ggml.tokens"));
  PROLOGUE_ASSIGN_OR_RETURN(data.token_types, file.get_or<std::vector<int32_t>>("tokenizer.ggml.token_type", {}));
  if (data.model == "gpt2" || file.has("tokenizer.ggml.merges")) {
    PROLOGUE_ASSIGN_OR_RETURN(data.merges, file.get<std::vector<std::string>>("tokenizer.ggml.merges"));
  }
  PROLOGUE_ASSIGN_OR_RETURN(data.bos_id, file.get_or<int32_t>("tokenizer.ggml.bos_token_id", -1));
  PROLOGUE_ASSIGN_OR_RETURN(data.eos_id, file.get_or<int32_t>("tokenizer.ggml.eos_token_id", -1));
  PROLOGUE_ASSIGN_OR_RETURN(data.eot_id, file.get_or<int32_t>("tokenizer.ggml.eot_token_id", -1));
  PROLOGUE_ASSIGN_OR_RETURN(data.add_bos, file.get_or<bool>("tokenizer.ggml.add_bos_token", data.pre == "llama-bpe"));
  PROLOGUE_ASSIGN_OR_RETURN(data.chat_template, file.get_or<std::string>("tokenizer.chat_template", {}));
  for (const char* key : {"tokenizer.ggml.add_eos_token", "tokenizer.ggml.add_sep_token"}) {
    PROLOGUE_ASSIGN_OR_RETURN(const bool appends, file.get_or<bool>(key, false));
    if (appends) return unsupported(file.path(), ": key ", key, " is true, but appending a token to every text is not supported");
  }
  return data;
}

}  // namespace

Result<TokenizerData> read_tokenizer_data(const GgufFile& file) {
  return catch_out_of_memory([&] { return read_keys(file); });
}

Result<TokenizerData> read_tokenizer_data(const std::string& path) {
  PROLOGUE_ASSIGN_OR_RETURN(const GgufFile file, GgufFile::open(path));
  return read_tokenizer_data(file);
}

}  // namespace prologue
