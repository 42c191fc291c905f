// Templates against jinja2 as `transformers` runs it (tests/golden/template), who wrote what, and what hostile templates and
// conversations run into.
#include <gtest/gtest.h>

#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

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

// The text, with what came from the caller between [ and ].
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
      if (text.ok()) EXPECT_EQ(text->bytes(), row.at("text").get<std::string>());
    } else {
      EXPECT_FALSE(text.ok()) << text->bytes() << "\njinja2: " << row.at("error");
    }
  }
}

}  // namespace
}  // namespace prologue
