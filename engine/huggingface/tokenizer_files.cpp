#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include <prologue/engine/base/file_bytes.h>
#include <prologue/engine/base/printable.h>
#include <prologue/engine/huggingface/json.h>
#include <prologue/engine/huggingface/tokenizer_files.h>
#include <prologue/engine/tokenizer/vocabulary.h>
#include <prologue/kernels/base/out_of_memory.h>

namespace prologue {
namespace {

constexpr uint64_t kMaxFileBytes = uint64_t{256} << 20;
constexpr char kGpt2Pattern[] = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// This is what \w is to Rust's regular expressions, which the pre-tokenizer Whitespace uses: without the superscripts that Oniguruma's has.
constexpr char kWord[] = R"(\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{200c}\x{200d}\x{24b6}-\x{24e9}\x{1f130}-\x{1f149}\x{1f150}-\x{1f169})"
                         R"(\x{1f170}-\x{1f189})";

// ---- Values and where they are ----

// Holds a value of a file, with its path for messages: "tokenizer.json: pre_tokenizer.pretokenizers[1]".
struct Part {
  const Json* json;  // never null: a member that is not there is JSON's null
  std::string where;

  bool is_null() const { return json->get_if<std::monostate>() != nullptr; }
  Part at(const char* name) const {
    static const Json kNull;
    const Json* member = json->find(name);
    return {member == nullptr ? &kNull : member, str_cat(where, where.back() == ':' ? " " : ".", name)};
  }
  Part at(size_t index) const { return {&(*json->get_if<Json::List>())[index], str_cat(where, "[", index, "]")}; }  // of a list

  Status wrong(const char* wanted) const { return data_loss(where, " is ", json->kind(), ": it must be ", wanted); }
  Result<std::string> text() const {
    if (const auto* value = json->get_if<std::string>()) return *value;
    return wrong("a string");
  }
  Result<std::string> text_or(std::string_view fallback) const {
    if (is_null()) return std::string(fallback);
    return text();
  }
  Result<bool> flag_or(bool fallback) const {
    if (is_null()) return fallback;
    if (const auto* value = json->get_if<bool>()) return *value;
    return wrong("true or false");
  }
  Result<int64_t> integer() const {
    if (const auto* value = json->get_if<int64_t>()) return *value;
    return wrong("an integer");
  }
  Result<double> number() const {
    if (const auto* value = json->get_if<int64_t>()) return static_cast<double>(*value);
    if (const auto* value = json->get_if<double>()) return *value;
    return wrong("a number");
  }
  Result<size_t> list_size() const {
    if (const auto* value = json->get_if<Json::List>()) return value->size();
    return wrong("a list");
  }
  Result<const Json::Object*> object() const {
    if (const auto* value = json->get_if<Json::Object>()) return value;
    return wrong("an object");
  }
  Status refuse(std::string_view type) const {
    return unsupported(where, " has the type ", in_quotes(type), ", which is not supported");
  }
};

// Calls use(part) for the parts of a sequence, or for the part itself. `list` is what sequences call their parts.
template <class Use>
Status for_each_part(const Part& part, const char* list, const Use& use) {
  if (part.is_null()) return ok_status();
  PROLOGUE_ASSIGN_OR_RETURN(const std::string type, part.at("type").text());
  if (type != "Sequence") return use(part, type);
  const Part parts = part.at(list);
  PROLOGUE_ASSIGN_OR_RETURN(const size_t count, parts.list_size());
  for (size_t i = 0; i < count; ++i) PROLOGUE_RETURN_IF_ERROR(for_each_part(parts.at(i), list, use));
  return ok_status();
}

// ---- tokenizer.json ----

class TokenizerJson {
 public:
  TokenizerJson(const Json& json, const std::string& name) : root_{&json, str_cat(name, ":")} {}

  Result<TokenizerData> read() {
    PROLOGUE_RETURN_IF_ERROR(root_.object().status());
    PROLOGUE_RETURN_IF_ERROR(read_model(root_.at("model")));
    PROLOGUE_RETURN_IF_ERROR(read_added_tokens(root_.at("added_tokens")));
    if (data_.model == TokenizerModel::unigram) data_.scores.resize(data_.tokens.size(), 0);  // added tokens have none
    PROLOGUE_RETURN_IF_ERROR(for_each_part(root_.at("normalizer"), "normalizers", [&](const Part& part, const std::string& type) {
      return read_normalizer(part, type);
    }));
    PROLOGUE_RETURN_IF_ERROR(
        for_each_part(root_.at("pre_tokenizer"), "pretokenizers",
                      [&](const Part& part, const std::string& type) { return read_pre_tokenizer(part, type); }));
    PROLOGUE_RETURN_IF_ERROR(read_decoder());
    PROLOGUE_RETURN_IF_ERROR(
        for_each_part(root_.at("post_processor"), "processors",
                      [&](const Part& part, const std::string& type) { return read_processor(part, type); }));
    return std::move(data_);
  }

 private:
  // ---- The vocabulary ----

  Status read_model(const Part& model) {
    PROLOGUE_RETURN_IF_ERROR(model.object().status());
    PROLOGUE_ASSIGN_OR_RETURN(const std::string type, model.at("type").text_or(model.at("merges").is_null() ? "" : "BPE"));
    PROLOGUE_ASSIGN_OR_RETURN(data_.byte_fallback, model.at("byte_fallback").flag_or(false));
    if (type == "BPE") return read_bpe(model);
    if (type == "Unigram") return read_unigram(model);
    return unsupported(model.where, " has the type ", in_quotes(type), ", which is not supported: supported are BPE and Unigram");
  }

  Status read_bpe(const Part& model) {
    data_.model = TokenizerModel::bpe;
    PROLOGUE_ASSIGN_OR_RETURN(data_.whole_pieces_first, model.at("ignore_merges").flag_or(false));
    PROLOGUE_ASSIGN_OR_RETURN(data_.fuse_unknown, model.at("fuse_unk").flag_or(false));
    for (const char* name : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      PROLOGUE_ASSIGN_OR_RETURN(const std::string text, model.at(name).text_or(""));
      if (!text.empty()) return unsupported(model.at(name).where, " is ", in_quotes(text), ": only an empty one is supported");
    }
    if (const Part dropout = model.at("dropout"); !dropout.is_null()) {
      PROLOGUE_ASSIGN_OR_RETURN(const double rate, dropout.number());
      if (rate != 0) return unsupported(dropout.where, " is ", rate, ": merges that are left out at random are not supported");
    }
    const Part vocabulary = model.at("vocab");
    PROLOGUE_ASSIGN_OR_RETURN(const Json::Object* const members, vocabulary.object());
    num_named_ = members->size();
    for (const JsonMember& member : *members) {
      PROLOGUE_ASSIGN_OR_RETURN(const int64_t id,
                                (Part{&member.value, str_cat(vocabulary.where, " of ", in_quotes(member.name))}.integer()));
      PROLOGUE_RETURN_IF_ERROR(set_token(id, member.name, is_byte_token(member.name) ? TokenType::byte : TokenType::normal));
    }
    PROLOGUE_ASSIGN_OR_RETURN(const std::string unknown, model.at("unk_token").text_or(""));
    if (!unknown.empty()) {
      const auto found = ids_.find(unknown);
      if (found == ids_.end())
        return data_loss(model.at("unk_token").where, " is ", in_quotes(unknown), ", which the vocabulary lacks");
      data_.unknown_id = found->second;
    }
    return read_merges(model.at("merges"));
  }

  // A merge is "left right" or ["left", "right"].
  Status read_merges(const Part& merges) {
    PROLOGUE_ASSIGN_OR_RETURN(const size_t count, merges.list_size());
    data_.merges.reserve(count);
    for (size_t i = 0; i < count; ++i) {
      const Json& merge = (*merges.json->get_if<Json::List>())[i];
      if (const auto* line = merge.get_if<std::string>()) {
        const size_t space = line->find(' ');
        if (space == std::string::npos || line->find(' ', space + 1) != std::string::npos) {
          return data_loss(merges.at(i).where, " is ", in_quotes(*line), ": it must be two tokens with a space between them");
        }
        data_.merges.push_back({line->substr(0, space), line->substr(space + 1)});
        continue;
      }
      const auto* pair = merge.get_if<Json::List>();
      const auto* left = pair != nullptr && pair->size() == 2 ? (*pair)[0].get_if<std::string>() : nullptr;
      const auto* right = left != nullptr ? (*pair)[1].get_if<std::string>() : nullptr;
      if (right == nullptr) return merges.at(i).wrong("a string or a list of two strings");
      data_.merges.push_back({*left, *right});
    }
    return ok_status();
  }

  Status read_unigram(const Part& model) {
    data_.model = TokenizerModel::unigram;
    data_.fuse_unknown = true;
    if (const Part unknown = model.at("unk_id"); !unknown.is_null()) {
      PROLOGUE_ASSIGN_OR_RETURN(const int64_t id, unknown.integer());
      if (id < 0 || id > std::numeric_limits<int32_t>::max())
        return data_loss(unknown.where, " is ", id, ": it must be the id of a token");
      data_.unknown_id = static_cast<int32_t>(id);
    }
    const Part vocabulary = model.at("vocab");
    PROLOGUE_ASSIGN_OR_RETURN(num_named_, vocabulary.list_size());
    for (size_t id = 0; id < num_named_; ++id) {
      const Part entry = vocabulary.at(id);
      PROLOGUE_ASSIGN_OR_RETURN(const size_t size, entry.list_size());
      if (size != 2) return entry.wrong("a list of a token and its score");
      PROLOGUE_ASSIGN_OR_RETURN(const std::string text, entry.at(size_t{0}).text());
      PROLOGUE_ASSIGN_OR_RETURN(const double score, entry.at(1).number());
      PROLOGUE_RETURN_IF_ERROR(
          set_token(static_cast<int64_t>(id), text, is_byte_token(text) ? TokenType::byte : TokenType::normal));
      data_.scores.push_back(score);
    }
    return ok_status();
  }

  Status read_added_tokens(const Part& tokens) {
    if (tokens.is_null()) return ok_status();
    PROLOGUE_ASSIGN_OR_RETURN(const size_t count, tokens.list_size());
    num_named_ += count;
    for (size_t i = 0; i < count; ++i) {
      const Part part = tokens.at(i);
      AddedToken token;
      PROLOGUE_ASSIGN_OR_RETURN(const int64_t id, part.at("id").integer());
      PROLOGUE_ASSIGN_OR_RETURN(const std::string text, part.at("content").text());
      PROLOGUE_ASSIGN_OR_RETURN(const bool special, part.at("special").flag_or(false));
      PROLOGUE_ASSIGN_OR_RETURN(token.normalized, part.at("normalized").flag_or(!special));
      PROLOGUE_ASSIGN_OR_RETURN(token.strip_left, part.at("lstrip").flag_or(false));
      PROLOGUE_ASSIGN_OR_RETURN(token.strip_right, part.at("rstrip").flag_or(false));
      PROLOGUE_ASSIGN_OR_RETURN(token.single_word, part.at("single_word").flag_or(false));
      PROLOGUE_RETURN_IF_ERROR(set_token(id, text, special ? TokenType::control : TokenType::user_defined));
      token.id = static_cast<int32_t>(id);
      if (!text.empty()) data_.added_tokens.push_back(token);
    }
    return ok_status();
  }

  bool is_byte_token(std::string_view text) const { return data_.byte_fallback && byte_of_token(text); }

  // An added token may be in the vocabulary already. Ids without a token become unused ones.
  Status set_token(int64_t id, const std::string& text, TokenType type) {
    const int64_t limit = static_cast<int64_t>(num_named_) + kMaxGaps;
    if (id < 0 || id >= limit) {
      return data_loss(root_.where, " token ", in_quotes(text), " has the id ", id, ": the ids of ", num_named_,
                       " tokens must be from 0 to ", limit - 1);
    }
    const auto index = static_cast<size_t>(id);
    if (index >= data_.tokens.size()) {
      data_.tokens.resize(index + 1);
      data_.token_types.resize(index + 1, static_cast<int32_t>(TokenType::unused));
    }
    if (text.empty()) return ok_status();  // no text contains it: the token is unused
    std::string& known = data_.tokens[index];
    if (!known.empty() && known != text) {
      return data_loss(root_.where, " token ", id, " is both ", in_quotes(known), " and ", in_quotes(text));
    }
    known = text;
    data_.token_types[index] = static_cast<int32_t>(type);
    ids_[text] = static_cast<int32_t>(id);
    return ok_status();
  }

  // ---- The steps ----

  Result<TextPattern> read_pattern(const Part& pattern) const {
    for (const char* kind : {"String", "Regex"}) {
      if (const Part part = pattern.at(kind); !part.is_null()) {
        PROLOGUE_ASSIGN_OR_RETURN(std::string text, part.text());
        return TextPattern{std::move(text), kind[0] == 'R'};
      }
    }
    return unsupported(pattern.where, " is of no known kind: supported are String and Regex");
  }

  Status read_normalizer(const Part& part, const std::string& type) {
    constexpr std::pair<std::string_view, UnicodeForm> kForms[] = {
        {"NFC", UnicodeForm::nfc}, {"NFD", UnicodeForm::nfd}, {"NFKC", UnicodeForm::nfkc}, {"NFKD", UnicodeForm::nfkd}};
    for (const auto& [name, form] : kForms) {
      if (type != name) continue;
      data_.normalizer.emplace_back(form);
      return ok_status();
    }
    if (type == "Prepend") {
      PROLOGUE_ASSIGN_OR_RETURN(std::string text, part.at("prepend").text());
      data_.normalizer.emplace_back(PrependText{std::move(text)});
    } else if (type == "Replace") {
      PROLOGUE_ASSIGN_OR_RETURN(TextPattern pattern, read_pattern(part.at("pattern")));
      PROLOGUE_ASSIGN_OR_RETURN(std::string content, part.at("content").text());
      data_.normalizer.emplace_back(ReplaceText{std::move(pattern), std::move(content)});
    } else if (type == "Strip") {
      StripWhiteSpace strip;
      PROLOGUE_ASSIGN_OR_RETURN(strip.left, part.at("strip_left").flag_or(true));
      PROLOGUE_ASSIGN_OR_RETURN(strip.right, part.at("strip_right").flag_or(true));
      data_.normalizer.emplace_back(strip);
    } else {
      return part.refuse(type);
    }
    return ok_status();
  }

  Result<SplitBehavior> read_behavior(const Part& behavior, std::string_view fallback) const {
    constexpr std::pair<std::string_view, SplitBehavior> kBehaviors[] = {
        {"Isolated", SplitBehavior::isolated},
        {"Removed", SplitBehavior::removed},
        {"MergedWithPrevious", SplitBehavior::merged_with_previous},
        {"MergedWithNext", SplitBehavior::merged_with_next},
        {"Contiguous", SplitBehavior::contiguous}};
    PROLOGUE_ASSIGN_OR_RETURN(const std::string name, behavior.text_or(fallback));
    for (const auto& [known, value] : kBehaviors) {
      if (name == known) return value;
    }
    return unsupported(behavior.where, " is ", in_quotes(name), ", which is not supported");
  }

  Result<Metaspace> read_metaspace(const Part& part) const {
    constexpr std::pair<std::string_view, PrependScheme> kSchemes[] = {
        {"always", PrependScheme::always}, {"first", PrependScheme::first}, {"never", PrependScheme::never}};
    Metaspace metaspace;
    PROLOGUE_ASSIGN_OR_RETURN(metaspace.replacement, part.at("replacement").text());
    PROLOGUE_ASSIGN_OR_RETURN(metaspace.split, part.at("split").flag_or(true));
    PROLOGUE_ASSIGN_OR_RETURN(const bool adds, part.at("add_prefix_space").flag_or(true));  // older files
    PROLOGUE_ASSIGN_OR_RETURN(const std::string scheme, part.at("prepend_scheme").text_or(adds ? "always" : "never"));
    for (const auto& [name, value] : kSchemes) {
      if (scheme != name) continue;
      metaspace.prepend = value;
      return metaspace;
    }
    return unsupported(part.at("prepend_scheme").where, " is ", in_quotes(scheme), ", which is not supported");
  }

  Status read_pre_tokenizer(const Part& part, const std::string& type) {
    // From there on, `tokenizers` sees GPT-2's letters for bytes instead of the text.
    if (data_.byte_level)
      return unsupported(part.where, ", ", in_quotes(type), ", comes after ByteLevel, which is not supported");
    if (type == "ByteLevel") {
      data_.byte_level = true;
      PROLOGUE_ASSIGN_OR_RETURN(const bool prefix, part.at("add_prefix_space").flag_or(true));
      PROLOGUE_ASSIGN_OR_RETURN(const bool use_regex, part.at("use_regex").flag_or(true));
      if (prefix) data_.pre_tokenizer.emplace_back(PrefixSpace{});
      if (use_regex) data_.pre_tokenizer.emplace_back(SplitText{.pattern = {kGpt2Pattern, true}});
      return ok_status();
    }
    if (type == "Metaspace") {
      PROLOGUE_ASSIGN_OR_RETURN(Metaspace metaspace, read_metaspace(part));
      data_.pre_tokenizer.emplace_back(std::move(metaspace));
      return ok_status();
    }
    SplitText split;
    if (type == "Split") {
      PROLOGUE_ASSIGN_OR_RETURN(split.pattern, read_pattern(part.at("pattern")));
      PROLOGUE_ASSIGN_OR_RETURN(split.behavior, read_behavior(part.at("behavior"), ""));
      PROLOGUE_ASSIGN_OR_RETURN(split.invert, part.at("invert").flag_or(false));
    } else if (type == "Digits") {
      PROLOGUE_ASSIGN_OR_RETURN(const bool individual, part.at("individual_digits").flag_or(false));
      split.pattern = {R"(\p{N})", true};
      split.behavior = individual ? SplitBehavior::isolated : SplitBehavior::contiguous;
    } else if (type == "Punctuation") {
      split.pattern = {R"([\p{P}$+<=>^`|~])", true};  // Unicode's, and the rest of ASCII's
      PROLOGUE_ASSIGN_OR_RETURN(split.behavior, read_behavior(part.at("behavior"), "Isolated"));
    } else if (type == "Whitespace") {
      split = {
          .pattern = {str_cat("[", kWord, "]+|[^", kWord, "\\s]+"), true}, .behavior = SplitBehavior::removed, .invert = true};
    } else if (type == "WhitespaceSplit") {
      split = {.pattern = {R"(\s)", true}, .behavior = SplitBehavior::removed};
    } else {
      return part.refuse(type);
    }
    data_.pre_tokenizer.emplace_back(std::move(split));
    return ok_status();
  }

  Status read_decoder() {
    const Part decoder = root_.at("decoder");
    if (decoder.is_null()) return unsupported(decoder.where, " is missing: tokens that are words are not supported");
    bool is_byte_level = false, is_fused = false;
    PROLOGUE_RETURN_IF_ERROR(for_each_part(decoder, "decoders", [&](const Part& part, const std::string& type) -> Status {
      if (type == "ByteLevel") {
        is_byte_level = true;
      } else if (type == "Metaspace") {
        PROLOGUE_ASSIGN_OR_RETURN(const Metaspace metaspace, read_metaspace(part));
        ReplaceText replace;
        replace.pattern.text = metaspace.replacement;
        replace.replacement.assign(1, ' ');
        data_.decoder.push_back(std::move(replace));
        data_.strip_first_space = metaspace.prepend != PrependScheme::never;
      } else if (type == "Replace" && !is_fused) {
        ReplaceText replace;
        PROLOGUE_ASSIGN_OR_RETURN(replace.pattern, read_pattern(part.at("pattern")));
        PROLOGUE_ASSIGN_OR_RETURN(replace.replacement, part.at("content").text());
        if (replace.pattern.is_regex)
          return unsupported(part.where, " has a regular expression, which is not supported in a decoder");
        data_.decoder.push_back(std::move(replace));
      } else if (type == "Fuse") {
        is_fused = true;
      } else if (type == "Strip") {
        return read_strip_decoder(part, is_fused);
      } else if (type != "ByteFallback") {
        return part.refuse(type);
      }
      return ok_status();
    }));
    if (is_byte_level == data_.byte_level) return ok_status();
    return unsupported(decoder.where, is_byte_level ? " is ByteLevel, but the pre-tokenizer is not"
                                                    : " is not ByteLevel, but the pre-tokenizer is");
  }

  Status read_strip_decoder(const Part& part, bool is_fused) {
    PROLOGUE_ASSIGN_OR_RETURN(const std::string content, part.at("content").text());
    PROLOGUE_ASSIGN_OR_RETURN(const int64_t start, part.at("start").integer());
    PROLOGUE_ASSIGN_OR_RETURN(const int64_t stop, part.at("stop").integer());
    if (!is_fused || content != " " || start < 0 || start > 1 || stop != 0) {
      return unsupported(part.where, " strips ", start, " and ", stop, " of ", in_quotes(content),
                         is_fused ? "" : " of each token", ": supported is one space at the beginning, after Fuse");
    }
    data_.strip_first_space = start == 1;
    return ok_status();
  }

  // ---- What comes before and after a text ----

  Status read_processor(const Part& part, const std::string& type) {
    if (type == "ByteLevel") return ok_status();  // changes offsets only
    if (type != "TemplateProcessing") return part.refuse(type);
    const Part single = part.at("single");
    PROLOGUE_ASSIGN_OR_RETURN(const size_t count, single.list_size());
    bool after_text = false;
    std::vector<int32_t> before;
    for (size_t i = 0; i < count; ++i) {
      const Part item = single.at(i);
      if (!item.at("Sequence").is_null()) {
        after_text = true;
        continue;
      }
      PROLOGUE_ASSIGN_OR_RETURN(const std::string name, item.at("SpecialToken").at("id").text());
      const auto found = ids_.find(name);
      if (found == ids_.end()) return data_loss(item.where, " is the token ", in_quotes(name), ", which the vocabulary lacks");
      if (!after_text) {
        before.push_back(found->second);
        continue;
      }
      if (data_.add_eos) return unsupported(single.where, " adds more than one token after a text, which is not supported");
      data_.add_eos = true;
      data_.eos_id = found->second;
    }
    data_.add_bos = !before.empty();
    if (before.size() == 1) {
      data_.bos_id = before.front();
    } else {
      data_.begin_ids = std::move(before);
    }
    return ok_status();
  }

  static constexpr int64_t kMaxGaps = 65536;

  Part root_;
  TokenizerData data_;
  size_t num_named_ = 0;  // the number of tokens that the file names; some twice
  std::unordered_map<std::string, int32_t> ids_;
};

// ---- The other files ----

// Returns an empty value if there is no such file.
Result<Json> read_optional_json(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return Json{};
  return read_json_file(path, kMaxFileBytes);
}

Result<std::string> read_optional_text(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return std::string();
  PROLOGUE_ASSIGN_OR_RETURN(FileBytes file, FileBytes::open(path));
  if (file.size() > kMaxFileBytes) {
    return unsupported(printable_path(path), ": the file has ", file.size(), " bytes: at most ", kMaxFileBytes, " are supported");
  }
  PROLOGUE_RETURN_IF_ERROR(file.read_head(file.size()));
  return std::string(reinterpret_cast<const char*>(file.head().data()), static_cast<size_t>(file.size()));
}

// Returns a token's text: a string, or an object with "content". It is empty if there is none.
Result<std::string> read_token_text(const Part& part) {
  const bool is_object = part.json->get_if<Json::Object>() != nullptr;
  return is_object ? part.at("content").text() : part.text_or("");
}

class OtherFiles {
 public:
  OtherFiles(const std::string& directory, TokenizerData& data) : directory_(directory), data_(data) {}

  Status read() {
    PROLOGUE_ASSIGN_OR_RETURN(const Json config_json, read_optional_json(directory_ + "/tokenizer_config.json"));
    PROLOGUE_ASSIGN_OR_RETURN(const Json map_json, read_optional_json(directory_ + "/special_tokens_map.json"));
    PROLOGUE_ASSIGN_OR_RETURN(const Json generation_json, read_optional_json(directory_ + "/generation_config.json"));
    const Part config = part(config_json, "tokenizer_config.json");
    const Part map = part(map_json, "special_tokens_map.json");
    PROLOGUE_RETURN_IF_ERROR(read_token(config, map, "bos_token", "add_bos_token", data_.bos_id, data_.add_bos));
    PROLOGUE_RETURN_IF_ERROR(read_token(config, map, "eos_token", "add_eos_token", data_.eos_id, data_.add_eos));
    const Part ends = part(generation_json, "generation_config.json").at("eos_token_id");
    PROLOGUE_RETURN_IF_ERROR(ends.is_null() ? read_end_ids_of_model() : read_end_ids(ends));
    read_named_tokens(config, map);
    PROLOGUE_RETURN_IF_ERROR(read_chat_template(config.at("chat_template")));
    return read_template_files();
  }

 private:
  Part part(const Json& json, const char* file) const { return {&json, str_cat(printable_path(directory_ + "/" + file), ":")}; }

  // What the template of tokenizer.json adds goes before what the other files name, unless the configuration says not to add it.
  Status read_token(const Part& config, const Part& map, const char* name, const char* add_name, int32_t& id, bool& adds) const {
    PROLOGUE_ASSIGN_OR_RETURN(const bool still_adds, config.at(add_name).flag_or(adds));
    const bool from_template = adds && still_adds && id >= 0;
    adds = still_adds;
    if (from_template) return ok_status();
    const Part named = config.at(name).is_null() ? map.at(name) : config.at(name);
    PROLOGUE_ASSIGN_OR_RETURN(const std::string text, read_token_text(named));
    if (text.empty()) return ok_status();
    const auto found = std::find(data_.tokens.begin(), data_.tokens.end(), text);
    if (found == data_.tokens.end()) return data_loss(named.where, " is ", in_quotes(text), ", which the vocabulary lacks");
    id = static_cast<int32_t>(found - data_.tokens.begin());
    return ok_status();
  }

  // The tokens of config.json are read if generation_config.json has none: as transformers makes a missing one, of the model's or its text
  // model's.
  Status read_end_ids_of_model() {
    PROLOGUE_ASSIGN_OR_RETURN(const Json json, read_optional_json(directory_ + "/config.json"));
    const Part model = part(json, "config.json");
    const Part ids = model.at("eos_token_id");
    return read_end_ids(ids.is_null() ? model.at("text_config").at("eos_token_id") : ids);
  }

  Status read_end_ids(const Part& ids) {
    if (ids.is_null()) return ok_status();
    const auto* list = ids.json->get_if<Json::List>();
    for (size_t i = 0; i < (list == nullptr ? 1 : list->size()); ++i) {
      PROLOGUE_ASSIGN_OR_RETURN(const int64_t id, (list == nullptr ? ids : ids.at(i)).integer());
      // Rows of padding in the embedding have ids, too.
      if (id >= 0 && id < static_cast<int64_t>(data_.tokens.size())) data_.end_ids.push_back(static_cast<int32_t>(id));
    }
    return ok_status();
  }

  Status read_chat_template(const Part& chat_template) {
    const auto* list = chat_template.json->get_if<Json::List>();
    if (list == nullptr) {
      PROLOGUE_ASSIGN_OR_RETURN(data_.chat_template, chat_template.text_or(""));
      return ok_status();
    }
    for (size_t i = 0; i < list->size(); ++i) {
      PROLOGUE_ASSIGN_OR_RETURN(const std::string name, chat_template.at(i).at("name").text());
      PROLOGUE_ASSIGN_OR_RETURN(std::string text, chat_template.at(i).at("template").text());
      if (name == "default") {
        data_.chat_template = std::move(text);
      } else {
        data_.named_chat_templates.push_back({name, std::move(text)});
      }
    }
    return ok_status();
  }

  // Templates in files of their own go before those of the configuration.
  Status read_template_files() {
    PROLOGUE_ASSIGN_OR_RETURN(std::string text, read_optional_text(directory_ + "/chat_template.jinja"));
    if (!text.empty()) data_.chat_template = std::move(text);
    std::error_code error;
    std::filesystem::directory_iterator files(directory_ + "/additional_chat_templates", error);
    std::vector<std::filesystem::path> paths;
    for (; !error && files != std::filesystem::directory_iterator(); files.increment(error)) {
      if (files->path().extension() == ".jinja") paths.push_back(files->path());
    }
    std::sort(paths.begin(), paths.end());
    for (const std::filesystem::path& path : paths) {
      PROLOGUE_ASSIGN_OR_RETURN(text, read_optional_text(path.string()));
      const std::string name = path.stem().string();
      auto& all = data_.named_chat_templates;
      std::erase_if(all, [&](const NamedChatTemplate& named) { return named.name == name; });
      all.push_back({name, std::move(text)});
    }
    return ok_status();
  }

  // Reads the special tokens that a chat template knows by name, besides BOS and EOS.
  void read_named_tokens(const Part& config, const Part& map) {
    const auto* members = config.json->get_if<Json::Object>();
    std::vector<std::string> names = {"unk_token", "pad_token", "sep_token", "cls_token", "mask_token"};
    for (size_t i = 0; members != nullptr && i < members->size(); ++i) {
      const std::string& name = (*members)[i].name;
      const bool is_token =
          name.size() > 6 && name.compare(name.size() - 6, 6, "_token") == 0 && name != "bos_token" && name != "eos_token";
      if (is_token && std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    }
    for (const std::string& name : names) {
      const Part named = config.at(name.c_str()).is_null() ? map.at(name.c_str()) : config.at(name.c_str());
      const auto text = read_token_text(named);
      if (text.ok() && !text->empty()) data_.named_tokens.emplace_back(name, *text);
    }
  }

  const std::string& directory_;
  TokenizerData& data_;
};

}  // namespace

Result<TokenizerData> parse_tokenizer_json(std::string_view text, const std::string& name) {
  return catch_out_of_memory([&]() -> Result<TokenizerData> {
    PROLOGUE_ASSIGN_OR_RETURN(const Json json, parse_json(text, name));
    return TokenizerJson(json, name).read();
  });
}

Result<TokenizerData> read_huggingface_tokenizer(const std::string& directory) {
  return catch_out_of_memory([&]() -> Result<TokenizerData> {
    const std::string path = directory + "/tokenizer.json";
    PROLOGUE_ASSIGN_OR_RETURN(const Json json, read_json_file(path, kMaxFileBytes));
    PROLOGUE_ASSIGN_OR_RETURN(TokenizerData data, TokenizerJson(json, printable_path(path)).read());
    PROLOGUE_RETURN_IF_ERROR(OtherFiles(directory, data).read());
    return data;
  });
}

}  // namespace prologue
