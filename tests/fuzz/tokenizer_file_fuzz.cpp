// Goes from a tokenizer.json, of the input's bytes or with any parts, to encoded text.
#include <prologue/engine/huggingface/tokenizer_files.h>

#include "tests/fuzz/texts.h"

using namespace prologue;
using namespace prologue::fuzz;

namespace {

constexpr const char* kNormalizers[] = {
    "null",
    R"({"type":"NFC"})",
    R"({"type":"NFKD"})",
    R"({"type":"Sequence","normalizers":[{"type":"Prepend","prepend":"▁"},{"type":"Replace","pattern":{"String":" "},"content":"▁"}]})",
    R"({"type":"Replace","pattern":{"Regex":"\\s+|x*"},"content":"--"})",
    R"({"type":"Strip","strip_left":true,"strip_right":true})",
    R"({"type":"Precompiled"})",
};
constexpr const char* kPreTokenizers[] = {
    "null",
    R"({"type":"ByteLevel","add_prefix_space":true})",
    R"({"type":"ByteLevel","add_prefix_space":false,"use_regex":false})",
    R"({"type":"Sequence","pretokenizers":[{"type":"Digits","individual_digits":true},{"type":"ByteLevel","add_prefix_space":false}]})",
    R"({"type":"Metaspace","replacement":"▁","prepend_scheme":"first","split":false})",
    R"({"type":"Metaspace","replacement":"▁","add_prefix_space":true})",
    R"({"type":"Sequence","pretokenizers":[{"type":"WhitespaceSplit"},{"type":"Punctuation"},{"type":"Whitespace"}]})",
    R"json({"type":"Split","pattern":{"Regex":"(a+)+b|\\p{L}+(?!\\S)"},"behavior":"MergedWithNext","invert":true})json",
    R"({"type":"Split","pattern":{"String":" "},"behavior":"MergedWithPrevious"})",
};
constexpr const char* kDecoders[] = {
    R"({"type":"ByteLevel"})",
    R"({"type":"Metaspace","replacement":"▁","prepend_scheme":"always"})",
    R"({"type":"Fuse"})",
    R"({"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":"▁"},"content":" "},{"type":"ByteFallback"},{"type":"Fuse"},{"type":"Strip","content":" ","start":1,"stop":0}]})",
};
constexpr const char* kVocabularies[] = {
    R"("type":"BPE","vocab":{"a":0,"b":1,"ab":2,"Ġ":3,"Ġa":4,"▁":5,"▁a":6,"e":7,"<0x0A>":8},"merges":["a b",["Ġ","a"],["▁","a"]])",
    R"("type":"Unigram","unk_id":0,"vocab":[["<unk>",0],["a",-1],["b",-2.5],["ab",-2],["▁",-3],["▁a",-1],["<0xFF>",0]])",
    R"("vocab":{"a":0,"<0xC3>":1,"<0xA9>":2},"merges":[],"byte_fallback":true,"unk_token":"a","fuse_unk":true)",
};

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char byte : text) {
    if (byte == '"' || byte == '\\') out += '\\';
    if (static_cast<unsigned char>(byte) >= 0x20) out += byte;
  }
  return out + '"';
}

std::string with_parts(Choices& choices, Texts& texts) {
  const auto part = [&](const auto& valid) { return choices.hostile() ? texts.next(3) : std::string(choices.pick(valid)); };
  std::string json =
      R"({"model":{)" + part(kVocabularies) + R"(,"ignore_merges":)" + (choices.chance(2) ? "true" : "false") + "}";
  json += R"(,"normalizer":)" + part(kNormalizers) + R"(,"pre_tokenizer":)" + part(kPreTokenizers) + R"(,"decoder":)" +
          part(kDecoders);
  json += R"(,"added_tokens":[{"id":20,"content":"<s>","special":true})";
  for (int64_t i = choices.integer(0, 4); i > 0; --i) {
    const auto flag = [&](const char* name) { return str_cat(",\"", name, "\":", choices.chance(2) ? "true" : "false"); };
    json += str_cat(R"(,{"id":)", choices.hostile() ? choices.absurd() : 20 + i, R"(,"content":)", quoted("<" + texts.next(2)),
                    flag("special"), flag("normalized"), flag("lstrip"), flag("rstrip"), flag("single_word"), "}");
  }
  json += R"(],"post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>"}},{"Sequence":{"id":"A"}}]}})";
  return json;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Tally tally("tokenizer_file");
  const size_t head = std::min<size_t>(size, 64);
  Choices choices(data, head);
  Texts texts(choices, data + head, size - head);
  const std::string file =
      choices.chance(4) ? std::string(reinterpret_cast<const char*>(data), size) : with_parts(choices, texts);
  Result<TokenizerData> read = parse_tokenizer_json(file);
  if (!read.ok()) {
    tally.count(false);
    check_message(read.status());
    return 0;
  }
  const int32_t unknown_id = read->unknown_id;
  const Result<Tokenizer> tokenizer = Tokenizer::create(std::move(read).value());
  tally.count(tokenizer.ok());
  if (!tokenizer.ok()) {
    check_message(tokenizer.status());
  } else {
    check_text(*tokenizer, texts.next(12), unknown_id, /*plain=*/false);
  }
  return 0;
}
