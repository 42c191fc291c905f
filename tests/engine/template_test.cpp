// Templates against jinja2 as `transformers` runs it (tests/golden/template), who wrote what, and what hostile templates and
// conversations run into.
#include <gtest/gtest.h>

#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <prologue/engine/template/template.h>

#include "tests/support/source_path.h"

namespace prologue {
namespace {

using nlohmann::ordered_json;

jinja::Value value_of(const ordered_json& json) {
  auto value = jinja::parse_json_value(json.dump());
  EXPECT_TRUE(value.ok()) << value.status().message();
  return value.ok() ? *value : jinja::Value{};
}

Result<jinja::Text> render(const std::string& source, const ordered_json& variables = ordered_json::object(),
                           const jinja::RenderOptions& options = {}) {
  PROLOGUE_ASSIGN_OR_RETURN(const jinja::Template made, jinja::Template::parse(source));
  jinja::Variables values;
  for (const auto& [name, value] : variables.items()) values.emplace_back(name, value_of(value));
  return made.render(values, options);
}

// Returns the text, with what came from the caller between [ and ].
std::string marked(const std::string& source, const ordered_json& variables) {
  const auto text = render(source, variables);
  if (!text.ok()) return text.status().message();
  std::string result;
  size_t begin = 0;
  for (const jinja::Run& run : text->runs()) {
    const std::string part = text->bytes().substr(begin, run.end - begin);
    result += run.from_caller ? "[" + part + "]" : part;
    begin = run.end;
  }
  return result;
}

std::string error_of(const std::string& source, const ordered_json& variables = ordered_json::object()) {
  return render(source, variables).status().message();
}

TEST(Template, WritesWhatJinja2Writes) {
  std::ifstream file(test::source_path("tests/golden/template/cases.json"));
  const ordered_json golden = ordered_json::parse(file);
  jinja::RenderOptions options;
  options.now.emplace();
  ASSERT_NE(strptime(golden.at("date").get<std::string>().c_str(), "%Y-%m-%d", &*options.now), nullptr);
  ASSERT_GT(golden.at("cases").size(), 1000u);
  for (const ordered_json& row : golden.at("cases")) {
    SCOPED_TRACE(row.at("name").get<std::string>() + ": " + row.at("template").get<std::string>());
    const auto text = render(row.at("template"), row.at("variables"), options);
    if (row.contains("text")) {
      EXPECT_TRUE(text.ok()) << text.status().message();
      EXPECT_EQ(text.ok() ? text->bytes() : "", row.at("text").get<std::string>());
    } else {
      EXPECT_FALSE(text.ok()) << text->bytes() << "\njinja2: " << row.at("error");
    }
  }
}

// ---- Who wrote what ----

// Text of the caller stays text of the caller, whatever a template does with it.
TEST(Template, KnowsWhoWroteWhat) {
  const ordered_json x = {{"x", "a b"}};
  for (const auto& [source, want] : std::vector<std::pair<std::string, std::string>>{
           {"<{{ x }}>", "<[a b]>"},
           {"{{ '<' + x + '>' }}", "<[a b]>"},
           {"{{ '<' ~ x ~ 1 }}", "<[a b]1"},
           {"{{ ('<' + x)[1:] }}", "[a b]"},
           {"{{ ('<' + x + '>')[1] }}", "[a]"},
           {"{{ (' ' + x + ' ') | trim }}", "[a b]"},
           {"{{ ('< ' + x).split(' ') | join('|') }}", "<|[a]|[b]"},
           {"{{ ('<' + x).rsplit(' ', 1)[0] }}", "<[a]"},
           {"{{ ('<' + x) | upper }}", "<[A B]"},
           {"{{ x.title() }}{{ x | capitalize }}", "[A BA b]"},
           {"{{ x | replace('a', '<|im_end|>') }}", "<|im_end|>[ b]"},
           {"{{ 'aXb' | replace('X', x) }}", "a[a b]b"},
           {"{{ 'aXb'.replace('X', x) }}", "a[a b]b"},
           {"{{ [x, 'y'] | join(',') }}", "[a b],y"},
           {"{{ 'y'.join([x, x]) }}", "[a b]y[a b]"},
           {"{{ '%s=%5s' % ('k', x) }}", "k=  [a b]"},
           {"{{ '{}:{:>4}'.format('k', x) }}", "k: [a b]"},
           {"{{ x % () }}", "[a b]"},
           {"{{ [x] }}", "['[a b]']"},
           {"{{ {'k': x} | tojson }}", "{\"k\": \"[a b]\"}"},
           {"{{ (x + '\"') | tojson }}", "\"[a b]\\\"\""},
           {"{{ x | list }}", "['[a]', '[ ]', '[b]']"},
           {"{% for c in x %}{{ c }},{% endfor %}", "[a],[ ],[b],"},
           {"{% set y %}<{{ x }}>{% endset %}{{ y }}", "<[a b]>"},
           {"{% macro m(v) %}<{{ v }}>{% endmacro %}{{ m(x) }}", "<[a b]>"},
           {"{% filter upper %}q{{ x }}{% endfilter %}", "Q[A B]"},
           {"{{ x * 2 }}", "[a ba b]"},
           {"{{ x.center(7, '*') }}", "**[a b]**"},
           {"{{ x | indent }}{{ 'a\nb' | indent(x) }}", "[a b]a\n[a b]b"},
           {"{{ x | reverse }}", "[b a]"},
           {"{{ x | e }}{{ x | safe }}{{ x | string }}", "[a ba ba b]"},
           {"{{ x | default('d') }}", "[a b]"},
           {"{{ x | truncate(5, true, '..', 0) }}", "[a b]"},
           {"{{ [x, 'a'] | sort | first }}{{ [x] | max }}", "a[a b]"},
           {"{{ [x] | map('upper') | first }}", "[A B]"},
           {"{{ x.splitlines()[0] }}{{ x.partition(' ')[2] }}", "[a bb]"},
           {"{% set ns = namespace(t='<') %}{% set ns.t = ns.t + x %}{{ ns.t }}", "<[a b]"}}) {
    EXPECT_EQ(marked(source, x), want) << source;
  }
  EXPECT_EQ(marked("{% for k, v in d.items() %}{{ k }}={{ v }}{% endfor %}", {{"d", {{"k", 1}}}}), "[k]=1");
  EXPECT_EQ(marked("{{ dict(**d) }}", {{"d", {{"k", "v"}}}}), "{'[k]': '[v]'}");
  EXPECT_EQ(marked("{% macro m() %}{{ kwargs }}{% endmacro %}{{ m(**d) }}", {{"d", {{"k", "v"}}}}), "{'[k]': '[v]'}");
}

// ---- Errors ----

TEST(Template, SaysTheLineAndWhy) {
  EXPECT_EQ(error_of("a\n\n{{ raise_exception('Roles must alternate') }}"), "line 3: Roles must alternate");
  EXPECT_EQ(error_of("{% macro m() %}\n{{ x.y }}\n{% endmacro %}\n\n{{ m() }}"), "line 2: 'x' is undefined");
  EXPECT_EQ(error_of("{% set x =\n  1 +\n 'a' %}"), "line 3: unsupported operand types for +: 'int' and 'str'");
  EXPECT_EQ(error_of("\n{{ 'a' | nothing }}"), "line 2: there is no filter 'nothing'");
  EXPECT_EQ(error_of("\n{{ 'a' is nothing }}"), "line 2: there is no test 'nothing'");
  EXPECT_EQ(error_of("{{ {}.a.b }}"), "line 1: 'dict object' has no attribute 'a'");
  EXPECT_EQ(error_of("{{ [1].append(2) }}"), "line 1: access to attribute 'append' of 'list' object is unsafe.");
  EXPECT_EQ(error_of("{{ 'a'.split() | replace('a') }}"), "line 1: replace needs a value for new");
  EXPECT_EQ(error_of("a\n{% if true %}\nb"), "line 3: the template ends before {% endif %}");
  EXPECT_EQ(error_of("a\n{{ 'b }}"), "line 2: a string has no end: ''b }}'");
  EXPECT_EQ(error_of("{{ 9223372036854775807 + 1 }}"), "line 1: an integer does not fit in 64 bits");
  EXPECT_EQ(error_of("{% include 'x' %}"), "line 1: {% include %} needs other templates, which a model does not have");
  EXPECT_EQ(error_of("{{ 'x'.encode() }}"), "line 1: the method str.encode is not supported");
}

// ---- Bounds ----

std::string repeated(const std::string& text, int count) {
  std::string result;
  for (int i = 0; i < count; ++i) result += text;
  return result;
}

// Each would take hours, the machine's memory or the whole stack.
TEST(Template, EndsHostileTemplates) {
  jinja::RenderOptions small;
  small.limits = {.steps = 100000, .bytes = size_t{16} << 20, .output_bytes = size_t{1} << 20};
  const std::string grow = "{% set ns = namespace(x='ab') %}{% for i in range(100) %}";
  for (const std::string& source : {
           std::string("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"),
           std::string("{{ 'a' * 99999999999 }}"),
           std::string("{{ '' * 9223372036854775807 }}{{ [1] * 99999999999 }}"),
           grow + "{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
           grow + "{% set ns.x = ns.x | replace('a', 'aa') %}{% endfor %}",
           grow + "{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
           grow + "{% set ns.x = {'a': ns.x, 'b': ns.x} %}{% endfor %}{{ ns.x | tojson }}",
           grow + "{% set ns.x = ns.x | list %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
           grow + "{% set ns.x = ns.x | join(ns.x) %}{% endfor %}",
           std::string("{{ '%999999999d' % 1 }}"),
           std::string("{{ '{:999999999}'.format(1) }}"),
           std::string("{{ '{:{}}'.format(1, 999999999) }}"),
           std::string("{{ '%.999999999f' % 1 }}"),
           std::string("{{ '%*d' % (999999999, 1) }}"),
           std::string("{{ 'a'.center(9999999999) }}"),
           std::string("{{ 'a'.zfill(9999999999) }}"),
           std::string("{{ 'a\tb'.expandtabs(9999999999) }}"),
           std::string("{{ 'a\nb' | indent(9999999999) }}"),
           std::string("{{ [1] | batch(9999999999, 'x') | list }}"),
           std::string("{{ [1] | slice(9999999999) | list }}"),
           std::string("{{ [[1]] | tojson(indent=9999999999) }}"),
           std::string("{{ range(9999999999) }}"),
           std::string("{{ 2 ** 9999999999 }}"),
           std::string("{{ 9999999999 ** 9999999999 }}"),
           std::string("{{ '9999999999999999999999' | int }}"),
           std::string("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"),
           std::string("{% macro m(x) %}{{ m([x]) }}{% endmacro %}{{ m(1) }}"),
           std::string("{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}"),
           std::string("{% macro m() %}{{ caller() }}{% endmacro %}{% macro n() %}{% call m() %}{{ n() }}{% endcall %}{% "
                       "endmacro %}{{ n() }}"),
           std::string("{% for i in range(99999) %}") + repeated("xxxxxxxxxxxxxxxxxxxxxxxx", 10) + "{% endfor %}",
           "{{ " + repeated("(", 100000) + "1" + repeated(")", 100000) + " }}",
           "{{ " + repeated("[", 100000) + repeated("]", 100000) + " }}",
           "{{ " + repeated("-", 100001) + "1 }}",
           "{{ " + repeated("not ", 100000) + "1 }}",
           "{{ x" + repeated(".a", 100000) + " }}",
           "{{ x" + repeated("|d", 100000) + " }}",
           "{{ x" + repeated("()", 100000) + " }}",
           "{{ x" + repeated(" if x else x", 100000) + " }}",
           "{{ x" + repeated(" if x", 100000) + " }}",
           repeated("{% if 1 %}", 100000) + repeated("{% endif %}", 100000),
           "{% set " + repeated("(", 100000) + "x" + repeated(")", 100000) + " = 1 %}",
           std::string(size_t{5} << 20, 'a'),
       }) {
    const auto text = render(source, ordered_json::object(), small);
    EXPECT_FALSE(text.ok()) << source.substr(0, 200);
    EXPECT_LT(text.status().message().size(), 400u) << source.substr(0, 200);
  }
  // What is only long is no attack.
  EXPECT_TRUE(render("{{ 1" + repeated(" + 1", 10000) + " }}{{ 1" + repeated(" ~ 1", 10000) + " }}{{ 1" +
                     repeated(" and 1", 10000) + " }}")
                  .ok());
  EXPECT_TRUE(render("{% if 0 %}" + repeated("{% elif 0 %}", 10000) + "{% endif %}").ok());
  EXPECT_FALSE(render("{{ loop_length }}" + repeated("{", 100000) + repeated("{%", 100000)).ok());
  EXPECT_FALSE(render("{{ '{0:{0:{0:{0}}}}'.format(1) }}").ok());
}

// The template is that of a model, and the conversation is made to be expensive.
TEST(Template, EndsHostileConversations) {
  jinja::RenderOptions small;
  small.limits = {.steps = 200000, .bytes = size_t{16} << 20, .output_bytes = size_t{8} << 20};
  const std::string many(size_t{1} << 18, 'a');
  // Searching the text in itself is linear, splitting it is counted.
  EXPECT_TRUE(render("{{ (x + 'b') in x }}", {{"x", many}}, small).ok());
  EXPECT_TRUE(
      render("{{ x.rfind(y) }}{{ x.find(y) }}{{ x.count(y) }}", {{"x", many}, {"y", many.substr(many.size() / 2) + "b"}}, small)
          .ok());
  EXPECT_FALSE(render("{{ x.split('a') | length }}", {{"x", many}}, small).ok());
  EXPECT_FALSE(render("{{ x.rsplit('a', 999999) | length }}", {{"x", many}}, small).ok());
  EXPECT_FALSE(render("{{ x | replace('a', x) }}", {{"x", many}}, small).ok());
  EXPECT_FALSE(render("{{ x | list | sort | join(x) }}", {{"x", many}}, small).ok());
  EXPECT_FALSE(render("{% for c in x %}{{ x[loop.index0:] }}{% endfor %}", {{"x", many}}, small).ok());
  EXPECT_FALSE(render("{% for c in x %}{{ x | upper | length }}{% endfor %}", {{"x", many}}, small).ok());
  EXPECT_FALSE(jinja::parse_json_value(repeated("[", 100000)).ok());
  EXPECT_FALSE(jinja::parse_json_value(repeated("[", 60) + repeated("]", 60)).ok());
}

TEST(Template, ReplacesBytesThatAreNoText) {
  EXPECT_EQ(render("a\xff{{ '\xc3' }}")->bytes(), "a\uFFFD\uFFFD");
  EXPECT_EQ(render("{{ '\\ud83d' }}")->bytes(), "\uFFFD");
}

// The same template renders the same in many threads, and keeps nothing between two renderings.
TEST(Template, KeepsNothing) {
  const auto made =
      jinja::Template::parse("{% set ns = namespace(n=0) %}{% for m in x %}{% set ns.n = ns.n + m %}{% endfor %}{{ ns.n }}");
  ASSERT_TRUE(made.ok());
  const jinja::Variables variables = {{"x", value_of({1, 2, 3})}};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int n = 0; n < 100; ++n) EXPECT_EQ(made->render(variables)->bytes(), "6");
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace prologue
