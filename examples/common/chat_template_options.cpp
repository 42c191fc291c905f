#include "examples/common/chat_template_options.h"

#include <algorithm>
#include <ctime>

#include <prologue/engine/base/file_bytes.h>
#include <prologue/engine/base/printable.h>

#include "flags.h"

namespace examples {

using namespace prologue;

namespace {

constexpr uint64_t kMaxTemplateBytes = uint64_t{4} << 20;

// Returns nothing if it is no date of the calendar.
std::optional<std::tm> read_date(const std::string& text) {
  std::tm date = {};
  if (strptime(text.c_str(), "%Y-%m-%d", &date) == nullptr) return std::nullopt;
  const std::time_t seconds = timegm(&date);  // also finds the day of the week
  std::tm found = {};
  gmtime_r(&seconds, &found);
  char written[16] = {};
  if (std::strftime(written, sizeof written, "%Y-%m-%d", &found) != 10 || text != written) return std::nullopt;
  return found;
}

Result<std::string> read_template(const std::string& path) {
  PROLOGUE_ASSIGN_OR_RETURN(FileBytes file, FileBytes::open(path));
  if (file.size() > kMaxTemplateBytes) {
    return unsupported(printable_path(path), ": the file has ", file.size(), " bytes: at most ", kMaxTemplateBytes,
                       " are supported");
  }
  PROLOGUE_RETURN_IF_ERROR(file.read_head(file.size()));
  return std::string(reinterpret_cast<const char*>(file.head().data()), static_cast<size_t>(file.size()));
}

}  // namespace

ChatTemplateFlags::ChatTemplateFlags(CLI::App& app, ChatTemplateOptions& options, const char* group)
    : app_(app), options_(options) {
  app.add_option("--chat-template", options.chosen,
                 "chat: a Jinja file in place of the model's template, or the name of one of the model's templates")
      ->type_name("FILE|NAME")
      ->group(group);
  app.add_option("--chat-template-kwargs", options.variables,
                 "chat: more variables of the template, as a JSON object: '{\"enable_thinking\": false}'")
      ->type_name("JSON")
      ->group(group);
  app.add_option("--chat-date", options.date, "chat: the date that templates write; default: today")
      ->type_name("YYYY-MM-DD")
      ->group(group);
}

std::string ChatTemplateFlags::apply() const {
  if (std::string misuse = misuse_of_empty(app_, {"--chat-template", "--chat-template-kwargs", "--chat-date"}); !misuse.empty()) {
    return misuse;
  }
  if (!options_.date.empty() && !read_date(options_.date)) {
    return str_cat("--chat-date is ", in_quotes(options_.date), ": it must be a date as YYYY-MM-DD");
  }
  if (!options_.variables.empty()) {
    const auto value = jinja::parse_json_value(options_.variables);
    if (!value.ok() || value->dict() == nullptr) {
      return str_cat("--chat-template-kwargs is ", in_quotes(options_.variables), ": it must be a JSON object");
    }
  }
  return {};
}

Result<ChatFormat> create_chat_format(const Tokenizer& tokenizer, const ChatTemplateOptions& options) {
  ChatTemplateChoice choice;
  choice.variables = options.variables;
  if (!options.date.empty()) choice.date = read_date(options.date);
  const auto named = tokenizer.named_chat_templates();
  const bool is_name = options.chosen == "default" || std::any_of(named.begin(), named.end(), [&](const NamedChatTemplate& each) {
                         return each.name == options.chosen;
                       });
  if (is_name) {
    choice.name = options.chosen;
  } else if (!options.chosen.empty()) {
    PROLOGUE_ASSIGN_OR_RETURN(choice.source, read_template(options.chosen));
    if (choice.source.empty()) return invalid_argument(printable_path(options.chosen), ": the chat template is empty");
  }
  return ChatFormat::create(tokenizer, choice);
}

}  // namespace examples
