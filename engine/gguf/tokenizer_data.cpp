#include <algorithm>
#include <initializer_list>
#include <unordered_map>
#include <utility>

#include <prologue/engine/base/printable.h>
#include <prologue/engine/gguf/tokenizer_data.h>
#include <prologue/kernels/base/out_of_memory.h>

namespace prologue {

namespace {

// ---- Byte-level BPE ----

// Describes a pre-tokenizer and its names in GGUF, as llama.cpp knows them. Its patterns split one after another; they are those of the
// models' tokenizer.json.
struct NamedPreTokenizer {
  std::initializer_list<std::string_view> names;
  std::initializer_list<const char*> patterns;
  bool whole_pieces_first = false;
  bool add_bos = false;  // the default of tokenizer.ggml.add_bos_token
};

#define PROLOGUE_CONTRACTIONS R"((?i:'s|'t|'re|'ve|'m|'ll|'d))"
#define PROLOGUE_SPACES R"(|\s*[\r\n]+|\s+(?!\S)|\s+)"
#define PROLOGUE_PUNCTUATION R"(| ?[^\s\p{L}\p{N}]+[\r\n]*)"
#define PROLOGUE_UPPER R"([\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])"
#define PROLOGUE_LOWER R"([\p{Ll}\p{Lm}\p{Lo}\p{M}])"

constexpr char kDigit[] = R"(\p{N})";
constexpr char kDigits[] = R"(\p{N}{1,3})";
constexpr char kGpt2[] = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr char kLlama3[] = PROLOGUE_CONTRACTIONS R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3})" PROLOGUE_PUNCTUATION PROLOGUE_SPACES;
constexpr char kMiniCpm5[] = PROLOGUE_CONTRACTIONS R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+)" PROLOGUE_PUNCTUATION PROLOGUE_SPACES;
constexpr char kQwen2[] = PROLOGUE_CONTRACTIONS R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N})" PROLOGUE_PUNCTUATION PROLOGUE_SPACES;
constexpr char kQwen35[] =
    PROLOGUE_CONTRACTIONS R"(|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*)" PROLOGUE_SPACES;
constexpr char kSeedCoder[] =
    PROLOGUE_CONTRACTIONS R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+)" PROLOGUE_SPACES;
constexpr char kGpt4o[] =
    R"([^\r\n\p{L}\p{N}]?)" PROLOGUE_UPPER "*" PROLOGUE_LOWER "+" PROLOGUE_CONTRACTIONS R"(?|[^\r\n\p{L}\p{N}]?)" PROLOGUE_UPPER
    "+" PROLOGUE_LOWER "*" PROLOGUE_CONTRACTIONS R"(?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*)" PROLOGUE_SPACES;
constexpr char kTekken[] = R"([^\r\n\p{L}\p{N}]?)" PROLOGUE_UPPER "*" PROLOGUE_LOWER R"(+|[^\r\n\p{L}\p{N}]?)" PROLOGUE_UPPER
                           "+" PROLOGUE_LOWER R"(*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*)" PROLOGUE_SPACES;
constexpr char kGroupedDigits[] = R"(\d{1,3}(?=(?:\d{3})*\b))";
constexpr char kBloom[] = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+";
constexpr char kDeepSeekCjk[] = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+";
constexpr char kDeepSeek3[] = R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+)"
                              R"(| ?[\p{P}\p{S}]+[\r\n]*)" PROLOGUE_SPACES;
constexpr char kDeepSeekCoderCjk[] = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+";
constexpr char kAsciiTriple[] = "[0-9][0-9][0-9]";

const NamedPreTokenizer kPreTokenizers[] = {
    {.names = {"default"}, .patterns = {R"([\p{P}\$\+<=>\^~\|]+)", kGpt2, R"(\p{N}+)", kAsciiTriple}},
    {.names = {"gpt-2", "phi-2", "olmo", "mpt", "jais", "trillion", "granite-docling", "gigachat", "a.x-4.0", "mellum",
               "modern-bert", "exaone4"},
     .patterns = {kGpt2}},
    {.names = {"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"},
     .patterns = {kDigit, kGpt2}},
    {.names = {"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"},
     .patterns = {kLlama3},
     .whole_pieces_first = true,
     .add_bos = true},
    {.names = {"dbrx", "smaug-bpe", "glm4", "chatglm-bpe"}, .patterns = {kLlama3}},
    {.names = {"minicpm5"}, .patterns = {kDigits, kMiniCpm5}, .whole_pieces_first = true},
    {.names = {"qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez", "stablelm2", "hunyuan", "solar-open", "grok-2",
               "bailingmoe", "bailingmoe2", "llada-moe"},
     .patterns = {kQwen2}},
    {.names = {"qwen35"}, .patterns = {kQwen35}},
    {.names = {"seed-coder"}, .patterns = {kSeedCoder}},
    {.names = {"gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"}, .patterns = {kGpt4o}},
    {.names = {"tiny_aya", "cohere2moe"}, .patterns = {kGroupedDigits, kGpt4o}},
    {.names = {"tekken"}, .patterns = {kTekken}, .whole_pieces_first = true, .add_bos = true},
    {.names = {"bloom", "poro-chat", "gpt3-finnish"}, .patterns = {kBloom}},
    {.names = {"viking"}, .patterns = {kBloom, kDigit}},
    {.names = {"deepseek-coder"}, .patterns = {"[\r\n]", R"(\s?\p{L}+)", R"(\s?\p{P}+)", kDeepSeekCoderCjk, kDigit}},
    {.names = {"deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"}, .patterns = {kDigits, kDeepSeekCjk, kDeepSeek3}},
    {.names = {"falcon"}, .patterns = {R"([\p{P}\$\+<=>\^~\|`]+)", kGpt2, R"(\p{N}+)", kAsciiTriple}},
};

#undef PROLOGUE_CONTRACTIONS
#undef PROLOGUE_SPACES
#undef PROLOGUE_PUNCTUATION
#undef PROLOGUE_UPPER
#undef PROLOGUE_LOWER

Result<NamedPreTokenizer> find_pre_tokenizer(std::string_view name) {
  std::string names;
  for (const NamedPreTokenizer& named : kPreTokenizers) {
    for (const std::string_view known : named.names) {
      if (known == name) return named;
      names += str_cat(names.empty() ? "" : ", ", known);
    }
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
  if (!file.has("tokenizer.ggml.pre")) {
    return not_found(file.path(),
                     ": the metadata key tokenizer.ggml.pre is missing: it names the pre-tokenizer, and with another one a text "
                     "has other tokens; convert the model anew");
  }
  PROLOGUE_ASSIGN_OR_RETURN(const auto name, file.get<std::string>("tokenizer.ggml.pre"));
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
  const TextPattern space = {" "}, mark = {kSpace};
  data.normalizer.emplace_back(ReplaceText{space, kSpace});
  data.decoder.push_back({mark, space.text});
  return ok_status();
}

// ---- Tokens that are known by their texts ----

// A GGUF file names one or two tokens that end a generation. Models have more, and llama.cpp knows those by their texts (llama.cpp#9606):
// first tokens of which a key names one, and where it does not, all with these texts count; then tokens that always count.
struct NamedEnd {
  const char* key;
  std::initializer_list<std::string_view> texts;
};
const NamedEnd kNamedEnds[] = {
    {"tokenizer.ggml.eom_token_id", {"<|eom_id|>"}},
    {"tokenizer.ggml.fim_pad_token_id", {"<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"}},
    {"tokenizer.ggml.fim_rep_token_id", {"<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"}},
    {"tokenizer.ggml.fim_sep_token_id", {"<|file_sep|>"}},
};
constexpr std::string_view kEndTexts[] = {"<|eot_id|>",
                                          "<|im_end|>",
                                          "<|end|>",
                                          "<|return|>",
                                          "<|call|>",
                                          "<|flush|>",
                                          "<|calls|>",
                                          "<end_of_turn>",
                                          "<|endoftext|>",
                                          "</s>",
                                          "<|eom_id|>",
                                          "<EOT>",
                                          "_<EOT>",
                                          "[EOT]",
                                          "[EOS]",
                                          "<|end_of_text|>",
                                          "<end_of_utterance>",
                                          "<eos>",
                                          "<turn|>",
                                          "<|tool_response>",
                                          "<\uff5cend\u2581of\u2581sentence\uff5c>",
                                          "[e~["};
// These markers begin the messages of chats. A text of this form is a marker, whatever type the file gives it.
constexpr std::string_view kTurnTexts[] = {"<|im_start|>", "<|im_sep|>", "<|start_header_id|>", "<|end_header_id|>",
                                           "<start_of_turn>"};

class KnownTexts {
 public:
  explicit KnownTexts(TokenizerData& data) : data_(data) {
    for (size_t id = 0; id < data.tokens.size(); ++id) ids_.emplace(data.tokens[id], static_cast<int32_t>(id));
    if (data.token_types.empty()) data.token_types.assign(data.tokens.size(), static_cast<int32_t>(TokenType::normal));
  }

  Status read_ends(const GgufFile& file) {
    for (const NamedEnd& end : kNamedEnds) {
      PROLOGUE_ASSIGN_OR_RETURN(const int32_t named, file.get_or<int32_t>(end.key, -1));
      if (named >= 0) data_.end_ids.push_back(named);
      for (const std::string_view text : end.texts) {
        if (named < 0) add_end(text);
      }
    }
    // <|end|> ends only a message where other tokens end the whole answer, and </s> is a text beside Gemma 4's markers.
    const bool is_message = (has("<|call|>") || has("<|calls|>")) && (has("<|return|>") || has("<|flush|>"));
    for (const std::string_view text : kEndTexts) {
      if (!(text == "<|end|>" && is_message) && !(text == "</s>" && has("<|tool_response>"))) add_end(text);
    }
    for (const std::string_view text : kTurnTexts) mark(text);
    return {};
  }

 private:
  bool has(std::string_view text) const { return ids_.count(text) != 0; }
  // Makes the token a marker. -1: there is none.
  int32_t mark(std::string_view text) {
    const auto found = ids_.find(text);
    if (found == ids_.end()) return -1;
    const auto id = static_cast<size_t>(found->second);
    if (id >= data_.token_types.size()) return found->second;  // Vocabulary::create refuses the types
    if (data_.token_types[id] != static_cast<int32_t>(TokenType::unknown))
      data_.token_types[id] = static_cast<int32_t>(TokenType::control);
    return found->second;
  }
  void add_end(std::string_view text) {
    if (const int32_t id = mark(text); id >= 0) data_.end_ids.push_back(id);
  }

  TokenizerData& data_;
  std::unordered_map<std::string_view, int32_t> ids_;
};

// Reads the chat templates, and the special tokens that they know by name.
Status read_chat_templates(const GgufFile& file, TokenizerData& data) {
  PROLOGUE_ASSIGN_OR_RETURN(data.chat_template, file.get_or<std::string>("tokenizer.chat_template", {}));
  PROLOGUE_ASSIGN_OR_RETURN(const auto names, file.get_or<std::vector<std::string>>("tokenizer.chat_templates", {}));
  for (const std::string& name : names) {
    PROLOGUE_ASSIGN_OR_RETURN(std::string source, file.get_or<std::string>(str_cat("tokenizer.chat_template.", name), {}));
    if (!source.empty()) data.named_chat_templates.push_back({name, std::move(source)});
  }
  constexpr std::pair<const char*, const char*> kTokens[] = {{"unk_token", "tokenizer.ggml.unknown_token_id"},
                                                             {"pad_token", "tokenizer.ggml.padding_token_id"},
                                                             {"sep_token", "tokenizer.ggml.seperator_token_id"},
                                                             {"mask_token", "tokenizer.ggml.mask_token_id"}};
  for (const auto& [name, key] : kTokens) {
    PROLOGUE_ASSIGN_OR_RETURN(const int32_t id, file.get_or<int32_t>(key, -1));
    if (id >= 0 && static_cast<size_t>(id) < data.tokens.size()) data.named_tokens.emplace_back(name, data.tokens[static_cast<size_t>(id)]);
  }
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
  PROLOGUE_RETURN_IF_ERROR(KnownTexts(data).read_ends(file));
  // A token without a text is never found.
  for (size_t id = 0; id < std::min(data.tokens.size(), data.token_types.size()); ++id) {
    if (data.tokens[id].empty()) data.token_types[id] = static_cast<int32_t>(TokenType::unused);
  }
  PROLOGUE_RETURN_IF_ERROR(read_chat_templates(file, data));
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
  for (const char* pattern : named.patterns) data.pre_tokenizer.emplace_back(SplitText{.pattern = {pattern, true}});
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
