#include "options.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>

#include <prologue/engine/base/printable.h>

#include "examples/common/engine_options.h"
#include "examples/common/flags.h"
#include "http_rules.h"

namespace serve {

using namespace prologue;
using namespace examples;

namespace {

constexpr int64_t kMostBodyBytes = int64_t{1} << 30;

// Returns its file's name without .gguf, or its directory's.
std::string name_of_model(const std::string& path) {
  std::error_code error;
  std::filesystem::path whole = std::filesystem::absolute(path, error).lexically_normal();
  if (!whole.has_filename()) whole = whole.parent_path();  // it ends with a slash
  if (whole.extension() == ".gguf") whole = whole.stem();
  return whole.filename().string();
}

}  // namespace

int fail(std::string_view message) {
  std::cerr << str_cat("serve: ", printable(message, 4096), "\n");  // one write: other threads write lines, too
  return 1;
}

ParsedOptions parse_options(int argc, char** argv) {
  Options options;
  HttpOptions& http = options.http;
  int64_t read_timeout = http.read_time.count();
  CLI::App app("Serves a model over HTTP, as the OpenAI API does, with a chat page at /.", "serve");
  app.get_formatter()->column_width(36);
  app.set_version_flag("--version", "prologue " PROLOGUE_VERSION);
  Flags flags(app);
  EngineFlags engine_flags(flags, options.engine);
  ChatTemplateFlags chat_template_flags(app, options.chat_template, "Model");

  const CLI::Option* api_key =
      app.add_option("--api-key", http.api_key,
                     "clients must send this key; other users of the machine do not see it in the environment")
          ->type_name("KEY")
          ->envname("PROLOGUE_API_KEY")
          ->group("Server");
  CLI::Option* model_name =
      app.add_option("--model-name", options.model_name,
                     "what clients call the model; default: the name of its file without .gguf, or of its directory")
          ->type_name("NAME");
  for (CLI::Option* option :
       {app.add_option("--host", options.host, "address to listen on; 0.0.0.0 = all")
            ->type_name("ADDRESS")
            ->capture_default_str(),
        flags.number<int>("--port", options.port, {0, 65535, "0 = any free one"}, "port to listen on; 0 = any free one"),
        app.add_option("--allowed-hosts", http.allowed_hosts,
                       "names of this server, beside loopback ones, that a request's Host and Origin may have; * = any")
            ->type_name("NAME,...")
            ->delimiter(','),
        app.add_flag("--strict", options.rules.strict,
                     "a request with a field that the server does not know is an error; without, the log names the field"),
        app.add_flag("--private-prefixes", options.rules.private_prefixes,
                     "only requests with the same cache_salt share prefixes of the KV cache: no other can be probed"),
        app.add_flag("--quiet", options.quiet, "do not show loading, nor a line for each request"), model_name}) {
    option->group("Server");
  }
  for (CLI::Option* option :
       {flags.size("--max-body", http.max_body_bytes, 1, "bytes of a request's body, at most", kMostBodyBytes),
        flags.number<int64_t>("--max-requests", http.max_requests, {1, 900},
                              "requests in work and in the queue, at most; others get status 429"),
        flags.number<int64_t>("--max-queue", options.engine.max_queue, {1, 1 << 20},
                              "prompts that wait, at most; others get status 429"),
        flags.number<int64_t>("--timeout", options.timeout_seconds, {1, 1 << 20},
                              "seconds from a request's arrival to its last token, at most"),
        flags.number<int64_t>("--read-timeout", read_timeout, {1, 3600}, "seconds that a client has to send a request")}) {
    option->group("Limits");
  }

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {
      app.exit(error);
      if (!std::cout.flush()) return {{}, fail(str_cat("standard output cannot be written: ", std::strerror(errno)))};
      return {};
    }
    fail(str_cat(message_of(error, app), " (serve --help lists the options)"));
    return {{}, 2};
  }
  std::string misuse = flags.misuse();
  if (misuse.empty()) misuse = misuse_of_empty(app, {"--model"});
  if (misuse.empty()) misuse = engine_flags.apply();
  if (misuse.empty()) misuse = chat_template_flags.apply();
  // An empty string is an error: it is mostly a variable of a script that is not set.
  const auto check = [&misuse](const char* what, const std::string& wrong) {
    if (misuse.empty() && !wrong.empty()) misuse = str_cat(what, " ", wrong);
  };
  if (api_key->count() > 0) check("--api-key (or PROLOGUE_API_KEY)", misuse_of_key(http.api_key));
  if (api_key->count() == 0 && std::getenv("PROLOGUE_API_KEY") != nullptr) {  // CLI11 takes an empty one for none
    check("PROLOGUE_API_KEY", "is empty: it must have at least one character, or not be set");
  }
  if (options.host.empty()) check("--host", "is empty: it must be an address of this machine; 0.0.0.0 is all of them");
  if (model_name->count() > 0 && options.model_name.empty())
    check("--model-name", "is empty: it must have at least one character");
  for (const std::string& name : http.allowed_hosts) check("--allowed-hosts:", misuse_of_host(name));
  if (!misuse.empty()) {
    fail(misuse);
    return {{}, 2};
  }
  http.read_time = std::chrono::seconds(read_timeout);
  if (options.model_name.empty()) options.model_name = name_of_model(options.engine.model_path);
  return {std::move(options), 0};
}

}  // namespace serve
