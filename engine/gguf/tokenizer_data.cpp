#include <array>
#include <utility>

#include <prologue/engine/base/printable.h>
#include <prologue/engine/gguf/tokenizer_data.h>
#include <prologue/kernels/base/host/out_of_memory.h>

namespace prologue {

namespace {

// ---- Byte-level BPE ----

// A pre-tokenizer by its name in GGUF. The patterns are those of the models' tokenizer.json.
struct NamedPreTokenizer {
  std::string_view name;
  const char* pattern;
  bool digits_first = false;  // every digit is a piece, before the pattern splits the rest
  bool whole_pieces_first = false;
  bool add_bos = false;  // the default of tokenizer.ggml.add_bos_token
};

#define PROLOGUE_GPT2 R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"
#define PROLOGUE_CONTRACTIONS R"((?i:'s|'t|'re|'ve|'m|'ll|'d))"
#define PROLOGUE_SPACES R"(|\s*[\r\n]+|\s+(?!\S)|\s+)"
#define PROLOGUE_UPPER R"([\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])"
#define PROLOGUE_LOWER R"([\p{Ll}\p{Lm}\p{Lo}\p{M}])"

constexpr char kLlama3[] =
    PROLOGUE_CONTRACTIONS R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)" PROLOGUE_SPACES;
constexpr char kQwen2[] = PROLOGUE_CONTRACTIONS R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)" PROLOGUE_SPACES;
constexpr char kGpt4o[] =
    R"([^\r\n\p{L}\p{N}]?)" PROLOGUE_UPPER "*" PROLOGUE_LOWER "+" PROLOGUE_CONTRACTIONS R"(?|[^\r\n\p{L}\p{N}]?)" PROLOGUE_UPPER
    "+" PROLOGUE_LOWER "*" PROLOGUE_CONTRACTIONS R"(?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*)" PROLOGUE_SPACES;
constexpr char kTekken[] = R"([^\r\n\p{L}\p{N}]?)" PROLOGUE_UPPER "*" PROLOGUE_LOWER R"(+|[^\r\n\p{L}\p{N}]?)" PROLOGUE_UPPER
                           "+" PROLOGUE_LOWER R"(*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*)" PROLOGUE_SPACES;

constexpr std::array kPreTokenizers = {
    NamedPreTokenizer{.name = "smollm", .pattern = PROLOGUE_GPT2, .digits_first = true},
    NamedPreTokenizer{.name = "gpt-2", .pattern = PROLOGUE_GPT2},
    NamedPreTokenizer{.name = "llama-bpe", .pattern = kLlama3, .whole_pieces_first = true, .add_bos = true},
    NamedPreTokenizer{.name = "qwen2", .pattern = kQwen2},
    NamedPreTokenizer{.name = "gpt-4o", .pattern = kGpt4o},
    NamedPreTokenizer{.name = "tekken", .pattern = kTekken, .whole_pieces_first = true},
    NamedPreTokenizer{.name = "starcoder", .pattern = PROLOGUE_GPT2, .digits_first = true},
    NamedPreTokenizer{.name = "refact", .pattern = PROLOGUE_GPT2, .digits_first = true},
    NamedPreTokenizer{.name = "command-r", .pattern = PROLOGUE_GPT2, .digits_first = true},
    NamedPreTokenizer{.name = "olmo", .pattern = PROLOGUE_GPT2},
    NamedPreTokenizer{.name = "phi-2", .pattern = PROLOGUE_GPT2},
    NamedPreTokenizer{.name = "dbrx", .pattern = kLlama3},
    NamedPreTokenizer{.name = "stablelm2", .pattern = kQwen2},
};

#undef PROLOGUE_GPT2
#undef PROLOGUE_CONTRACTIONS
#undef PROLOGUE_SPACES
#undef PROLOGUE_UPPER
#undef PROLOGUE_LOWER

Result<NamedPreTokenizer> find_pre_tokenizer(std::string_view name) {
  std::string names;
  for (const NamedPreTokenizer& named : kPreTokenizers) {
    if (named.name == name) return named;
    names += str_cat(names.empty() ? "" : ", ", named.name);
  }
  return unsupported("the pre-tokenizer ", in_quotes(name), " (tokenizer.ggml.pre) is not supported: supported are ", names);
}

Result<std::vector<TokenMerge>> split_merges(const std::vector<std::string>& lines) {
  std::vector<TokenMerge> merges;
  merges.reserve(lines.size());
  for (size_t rank = 0; rank < lines.size(); ++rank) {
    const std::string& line = lines[rank];
    const size_t space = line.find(' ');
    if (space == 0 || space >= line.size() - 1 || line.find(' ', space + 1) != std::string::npos) {
      return data_loss("merge ", rank, ", ", in_quotes(line), ", is not two tokens with one space between them");
    }
    merges.push_back({line.substr(0, space), line.substr(space + 1)});
  }
  return merges;
}

Status read_byte_level_bpe(const GgufFile& file, TokenizerData& data) {
  PROLOGUE_ASSIGN_OR_RETURN(const auto lines, file.get<std::vector<std::string>>("tokenizer.ggml.merges"));
  PROLOGUE_ASSIGN_OR_RETURN(data.merges, split_merges(lines));
  PROLOGUE_ASSIGN_OR_RETURN(const auto name, file.get_or<std::string>("tokenizer.ggml.pre", {}));
  PROLOGUE_RETURN_IF_ERROR(set_gguf_pre_tokenizer(name, data));
  PROLOGUE_ASSIGN_OR_RETURN(data.add_bos, file.get_or<bool>("tokenizer.ggml.add_bos_token", data.add_bos));
  return ok_status();
}

// ---- SentencePiece's BPE ----

Status read_spm(const GgufFile& file, TokenizerData& data) {
  constexpr char kSpace[] = "\u2581";
  data.model = TokenizerModel::spm_bpe;
  data.byte_fallback = true;
  PROLOGUE_ASSIGN_OR_RETURN(const auto scores, file.get<std::vector<float>>("tokenizer.ggml.scores"));
  data.scores.assign(scores.begin(), scores.end());
  PROLOGUE_ASSIGN_OR_RETURN(data.unknown_id, file.get_or<int32_t>("tokenizer.ggml.unknown_token_id", -1));
  PROLOGUE_ASSIGN_OR_RETURN(data.add_bos, file.get_or<bool>("tokenizer.ggml.add_bos_token", true));
  PROLOGUE_ASSIGN_OR_RETURN(data.strip_first_space, file.get_or<bool>("tokenizer.ggml.add_space_prefix", true));
  if (data.strip_first_space) data.normalizer.emplace_back(PrependText{" "});
  data.normalizer.emplace_back(ReplaceText{{" "}, kSpace});
  data.decoder.push_back({{kSpace}, " "});
  return ok_status();
}

Result<TokenizerData> read_keys(const GgufFile& file) {
  TokenizerData data;
  PROLOGUE_ASSIGN_OR_RETURN(const auto model, file.get<std::string>("tokenizer.ggml.model"));
  PROLOGUE_ASSIGN_OR_RETURN(data.tokens, file.get<std::vector<std::string>>("tokenizer.ggml.tokens"));
  PROLOGUE_ASSIGN_OR_RETURN(data.token_types, file.get_or<std::vector<int32_t>>("tokenizer.ggml.token_type", {}));
  if (model == "gpt2") {
    PROLOGUE_RETURN_IF_ERROR(read_byte_level_bpe(file, data));
  } else if (model == "llama") {
    PROLOGUE_RETURN_IF_ERROR(read_spm(file, data));
  } else {
    return unsupported(
        "the tokenizer model ", in_quotes(model),
        " (tokenizer.ggml.model) is not supported: supported are gpt2 (byte-level BPE) and llama (SentencePiece's BPE)");
  }
  PROLOGUE_ASSIGN_OR_RETURN(data.bos_id, file.get_or<int32_t>("tokenizer.ggml.bos_token_id", -1));
  PROLOGUE_ASSIGN_OR_RETURN(data.eos_id, file.get_or<int32_t>("tokenizer.ggml.eos_token_id", -1));
  PROLOGUE_ASSIGN_OR_RETURN(data.eot_id, file.get_or<int32_t>("tokenizer.ggml.eot_token_id", -1));
  PROLOGUE_ASSIGN_OR_RETURN(data.chat_template, file.get_or<std::string>("tokenizer.chat_template", {}));
  for (const char* key : {"tokenizer.ggml.add_eos_token", "tokenizer.ggml.add_sep_token"}) {
    PROLOGUE_ASSIGN_OR_RETURN(const bool appends, file.get_or<bool>(key, false));
    if (appends) return unsupported(file.path(), ": key ", key, " is true, but appending a token to every text is not supported");
  }
  return data;
}

}  // namespace

Status set_gguf_pre_tokenizer(std::string_view name, TokenizerData& data) {
  PROLOGUE_ASSIGN_OR_RETURN(const NamedPreTokenizer named, find_pre_tokenizer(name));
  data.model = TokenizerModel::bpe;
  data.byte_level = true;
  data.whole_pieces_first = named.whole_pieces_first;
  data.add_bos = named.add_bos;
  data.pre_tokenizer.clear();
  if (named.digits_first) data.pre_tokenizer.emplace_back(SplitText{.pattern = {R"(\p{N})", true}});
  data.pre_tokenizer.emplace_back(SplitText{.pattern = {named.pattern, true}});
  return ok_status();
}

Result<TokenizerData> read_tokenizer_data(const GgufFile& file) {
  return catch_out_of_memory([&] { return read_keys(file); });
}

Result<TokenizerData> read_tokenizer_data(const std::string& path) {
  PROLOGUE_ASSIGN_OR_RETURN(const GgufFile file, GgufFile::open(path));
  return read_tokenizer_data(file);
}

}  // namespace prologue
