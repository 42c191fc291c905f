#include "flags.h"

#include <algorithm>
#include <limits>

#include "closest.h"

namespace examples {

using namespace prologue;

std::string message_of(const CLI::ParseError& error, const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  for (std::string word : app.remaining()) {
    word.resize(std::min(word.size(), word.find('=')));
    if (word.starts_with("--")) return str_cat("there is no option ", in_quotes(word), did_you_mean(word, names));
  }
  if (error.get_name() == "ArgumentMismatch") {  // its own text has internal words: "--port: 1 required N missing"
    const std::string_view text = error.what();
    for (const std::string& name : names) {
      if (text.starts_with(name + ":")) {
        const size_t given = app.get_option(name)->count();
        return given > 1 ? str_cat(name, " is given ", given, " times: it takes one value") : str_cat(name, " needs a value");
      }
    }
  }
  return error.what();
}

std::string misuse_of_empty(const CLI::App& app, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    const CLI::Option* option = app.get_option_no_throw(name);
    if (option != nullptr && option->count() > 0 && option->results().front().empty()) {
      return str_cat(name, " is empty: it must have a value, or be left out");
    }
  }
  return {};
}

CLI::Option* Flags::size(const std::string& name, int64_t& target, int64_t min, const std::string& help, int64_t max) {
  const auto parse = [this, &target, name, min, max](const std::string& text) {
    constexpr std::string_view kUnits = "KMGT";
    const char* end = text.data() + text.size();
    int64_t value = 0;
    const auto [rest, error] = std::from_chars(text.data(), end, value);
    bool valid = error == std::errc();
    if (const size_t unit = rest + 1 == end ? kUnits.find(*rest) : kUnits.npos; valid && unit != kUnits.npos) {
      const int64_t factor = int64_t{1} << (10 * (unit + 1));
      valid = value <= std::numeric_limits<int64_t>::max() / factor;
      if (valid) value *= factor;
    } else {
      valid = valid && rest == end;
    }
    if (valid && value >= min && value <= max) {
      target = value;
    } else {
      const bool bounded = max < std::numeric_limits<int64_t>::max();
      refuse(name, text,
             str_cat("number of bytes, at least ", min, bounded ? str_cat(" and at most ", max) : "",
                     "; K, M, G or T may follow it"));
    }
  };
  return app_->add_option_function<std::string>(name, parse, help)->type_name("BYTES")->default_str(str_cat(target));
}

CLI::Option* Flags::choice(const std::string& name, std::string& target, const std::vector<std::string>& words,
                           const std::string& help) {
  std::string list;
  for (const std::string& word : words) list += (list.empty() ? "" : "|") + word;
  return app_->add_option(name, target, help)
      ->check(CLI::IsMember(words).description(""))
      ->type_name(list)
      ->capture_default_str();
}

}  // namespace examples
