// render_template: renders templates for scripts/compare_templates. Each line of the input is a JSON object with "template" and
// "context"; "now" may fix the date, as YYYY-MM-DD. Each line of the output is an object with "text", or with "error".
#include <ctime>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include <prologue/engine/template/template.h>

using namespace prologue;
using nlohmann::ordered_json;

namespace {

Result<jinja::Text> render(const ordered_json& job) {
  PROLOGUE_ASSIGN_OR_RETURN(const jinja::Template made, jinja::Template::parse(job.at("template").get<std::string>()));
  jinja::Variables variables;
  for (const auto& [name, value] : job.at("context").items()) {
    PROLOGUE_ASSIGN_OR_RETURN(jinja::Value parsed, jinja::parse_json_value(value.dump()));
    variables.emplace_back(name, std::move(parsed));
  }
  jinja::RenderOptions options;
  if (job.contains("now")) {
    options.now.emplace();
    strptime(job.at("now").get<std::string>().c_str(), "%Y-%m-%d", &*options.now);
  }
  return made.render(variables, options);
}

}  // namespace

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    const auto text = render(ordered_json::parse(line));
    const ordered_json answer =
        text.ok() ? ordered_json{{"text", text->bytes()}} : ordered_json{{"error", text.status().message()}};
    std::cout << answer.dump() << std::endl;
  }
}
