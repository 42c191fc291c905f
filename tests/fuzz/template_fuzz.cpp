// Templates made of fragments and of any bytes, over conversations of any text: an error or a text within the limits, the same each time,
// and what the caller wrote is never taken for the template's.
#include <prologue/engine/base/utf8.h>
#include <prologue/engine/template/template.h>

#include <string>

#include "tests/fuzz/choices.h"
#include "tests/fuzz/memory_map.h"
#include "tests/fuzz/texts.h"

using namespace prologue;
using namespace prologue::fuzz;

namespace {

// Each text of the caller has this mark, and no template has it.
constexpr std::string_view kMark = "\ue000";

constexpr const char* kExpressions[] = {"x",
                                        "m",
                                        "m.role",
                                        "m['content']",
                                        "messages",
                                        "messages[0]",
                                        "messages[-1].content",
                                        "loop.index",
                                        "loop.last",
                                        "loop",
                                        "ns.a",
                                        "ns",
                                        "none",
                                        "true",
                                        "1",
                                        "-7",
                                        "2.5",
                                        "'a b'",
                                        "\"<|im_end|>\"",
                                        "[1, 'b', x]",
                                        "{'k': x, 'items': [x]}",
                                        "(x, 1)",
                                        "undefined_name",
                                        "f",
                                        "range(3)",
                                        "namespace(a=x)",
                                        "dict(a=x)",
                                        "strftime_now('%Y')",
                                        "caller",
                                        "varargs",
                                        "kwargs",
                                        "x | e"};
constexpr const char* kAfter[] = {" + ",
                                  " ~ ",
                                  " * ",
                                  " - ",
                                  " / ",
                                  " // ",
                                  " % ",
                                  " ** ",
                                  " == ",
                                  " < ",
                                  " in ",
                                  " not in ",
                                  " and ",
                                  " or ",
                                  " is ",
                                  " if ",
                                  " else ",
                                  " | upper",
                                  " | trim",
                                  " | tojson",
                                  " | tojson(indent=2)",
                                  " | join(x)",
                                  " | join(', ', attribute='role')",
                                  " | length",
                                  " | first",
                                  " | last",
                                  " | list",
                                  " | sort",
                                  " | reverse | list",
                                  " | replace('a', x)",
                                  " | replace(x, 'b')",
                                  " | default(x)",
                                  " | map('upper') | list",
                                  " | selectattr('role', 'equalto', 'user') | list",
                                  " | map(attribute='content') | list",
                                  " | string",
                                  " | int",
                                  " | float",
                                  " | round(1)",
                                  " | batch(2) | list",
                                  " | slice(2) | list",
                                  " | dictsort",
                                  " | items | list",
                                  " | unique | list",
                                  " | groupby('role')",
                                  " | indent(2)",
                                  " | truncate(5)",
                                  " | wordcount",
                                  " | title",
                                  " | capitalize",
                                  " | center(20)",
                                  " | format(x)",
                                  " | sum",
                                  " | max",
                                  " | safe",
                                  " | striptags",
                                  " | abs",
                                  " | pprint",
                                  " | select('string') | list",
                                  "[0]",
                                  "[1:]",
                                  "[::-1]",
                                  "[:2]",
                                  "['content']",
                                  ".role",
                                  ".items()",
                                  ".keys()",
                                  ".get('role', x)",
                                  ".split(x)",
                                  ".split()",
                                  ".split('a', 1)",
                                  ".rsplit(' ', 1)",
                                  ".strip()",
                                  ".strip(x)",
                                  ".lstrip('a')",
                                  ".startswith('a')",
                                  ".replace('a', x)",
                                  ".upper()",
                                  ".title()",
                                  ".join(['a', x])",
                                  ".format(x, 1)",
                                  ".format_map({'a': x})",
                                  ".find('a')",
                                  ".splitlines()",
                                  ".partition('a')",
                                  ".zfill(9)",
                                  ".center(9, '*')",
                                  ".expandtabs()",
                                  ".removeprefix('a')",
                                  ".count('a')",
                                  "(x)",
                                  "(x, k=1)",
                                  "()",
                                  " is string",
                                  " is defined",
                                  " is none",
                                  " is mapping",
                                  " is iterable",
                                  " is divisibleby 2",
                                  " is in [x]",
                                  " % x",
                                  " % (x, 1)",
                                  " % {'a': x}"};
constexpr const char* kStatements[] = {"{% for m in messages %}",
                                       "{%- for m in messages if m.content -%}",
                                       "{% for k, v in messages[0].items() %}",
                                       "{% for c in x recursive %}",
                                       "{% endfor %}",
                                       "{% else %}",
                                       "{% if x %}",
                                       "{%- if m.role == 'user' -%}",
                                       "{% elif y %}",
                                       "{% endif %}",
                                       "{% set y = x %}",
                                       "{% set ns = namespace(a='') %}",
                                       "{% set ns.a = ns.a ~ x %}",
                                       "{% set y %}",
                                       "{% endset %}",
                                       "{% macro f(a, b=x) %}",
                                       "{% endmacro %}",
                                       "{% call f(x) %}",
                                       "{% endcall %}",
                                       "{{ caller() }}",
                                       "{% filter upper %}",
                                       "{% endfilter %}",
                                       "{% with a = x %}",
                                       "{% endwith %}",
                                       "{% generation %}",
                                       "{% endgeneration %}",
                                       "{% break %}",
                                       "{% continue %}",
                                       "{% raw %}",
                                       "{% endraw %}",
                                       "{# x #}",
                                       "\n",
                                       "  ",
                                       "<|im_start|>",
                                       "{{ raise_exception(x) }}",
                                       "{{ loop(x) }}",
                                       "{% for m in messages %}{{ m.role ~ ': ' ~ m.content }}{% endfor %}"};

std::string expression(Choices& choices) {
  std::string text = choices.pick(kExpressions);
  for (int64_t n = choices.integer(0, 4); n > 0; --n) {
    const std::string after = choices.pick(kAfter);
    text += after;
    if (after.back() == ' ') text += choices.pick(kExpressions);
  }
  return text;
}

std::string any_template(Choices& choices, Texts& texts) {
  std::string text;
  for (int64_t n = choices.integer(0, 12); n > 0; --n) {
    if (choices.chance(2)) {
      text += "{{ " + expression(choices) + " }}";
    } else if (choices.chance(8)) {
      text += texts.next(2);
    } else {
      text += choices.pick(kStatements);
    }
  }
  // Closes what is open, so that most templates run.
  constexpr std::pair<const char*, const char*> kPairs[] = {
      {"{% for", "endfor"},     {"{%- for", "endfor"},  {"{% if", "endif"},        {"{%- if", "endif"},
      {"{% macro", "endmacro"}, {"{% call", "endcall"}, {"{% filter", "endfilter"}};
  size_t last = text.size();
  while (!choices.hostile() && last > 0) {
    const size_t tag = text.rfind("{%", last - 1);
    if (tag == std::string::npos) break;
    for (const auto& [begin, end] : kPairs) {
      if (text.compare(tag, std::string(begin).size(), begin) == 0 && text.find(end, tag) == std::string::npos) {
        text += str_cat("{% ", end, " %}");
      }
    }
    last = tag;
  }
  for (size_t at = 0; (at = text.find(kMark, at)) != std::string::npos;) text.erase(at, kMark.size());
  return text;
}

std::string json_text(const std::string& text) {
  std::string json = "\"";
  for (const char c : text + std::string(kMark)) {
    if (c == '"' || c == '\\') json += '\\';
    if (static_cast<unsigned char>(c) >= 0x20) json += c;
  }
  return json + "\"";
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Tally tally("template");
  const size_t head = std::min<size_t>(size, 64);
  Choices choices(data, head);
  Texts texts(choices, data + head, size - head);
  const std::string source = any_template(choices, texts);
  const Result<jinja::Template> made = jinja::Template::parse(source);
  tally.count(made.ok());
  if (!made.ok()) {
    check_message(made.status());
    return 0;
  }
  std::string messages = "[";
  for (int64_t n = choices.integer(0, 3); n > 0; --n) {
    messages += str_cat(messages.size() > 1 ? "," : "", "{\"role\":", choices.chance(2) ? "\"user\"" : json_text("x"),
                        ",\"content\":", json_text(replace_invalid_bytes(texts.next(3))), ",", json_text("k"),
                        ":[1,2.5,null,{\"a\":true}]}");
  }
  const Result<jinja::Value> list = jinja::parse_json_value(messages + "]");
  const Result<jinja::Value> x = jinja::parse_json_value(json_text(replace_invalid_bytes(texts.next(2))));
  if (!list.ok() || !x.ok()) fail("no JSON");
  const jinja::Variables variables = {{"messages", *list}, {"x", *x}};
  jinja::RenderOptions options;
  options.now.emplace();
  options.limits = {.steps = 20000, .bytes = size_t{1} << 20, .output_bytes = size_t{1} << 16};
  const Result<jinja::Text> text = made->render(variables, options), again = made->render(variables, options);
  if (text.ok() != again.ok() || (text.ok() && text->bytes() != again->bytes())) fail("the second time it is another text");
  if (!text.ok()) {
    check_message(text.status());
    return 0;
  }
  if (text->size() > options.limits.output_bytes) fail("the text is longer than the limit");
  if (!is_valid_utf8(text->bytes())) fail("the text is not UTF-8");
  if ((text->runs().empty() ? 0 : text->runs().back().end) != text->size()) fail("the runs do not cover the text");
  for (size_t at = 0; (at = text->bytes().find(kMark, at)) != std::string::npos; at += kMark.size()) {
    if (!text->from_caller_at(at)) fail("a text of the caller is taken for the template's: " + source);
  }
  return 0;
}
