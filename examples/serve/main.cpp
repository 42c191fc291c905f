// serve: an HTTP server for one model, in the shapes of the OpenAI API. It shows how to run the engine for many clients: one thread
// makes the steps, the threads of the connections submit requests and wait for their tokens.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <exception>
#include <iostream>
#include <new>
#include <thread>

#include <prologue/engine/base/printable.h>
#include <prologue/engine/engine.h>

#include "examples/common/engine_options.h"
#include "examples/common/progress_bar.h"

#include "api.h"
#include "http.h"
#include "options.h"
#include "request_log.h"

using namespace prologue;
using namespace serve;

namespace {

constexpr std::chrono::seconds kPatience{10};  // at the end, for requests in work to send their last words

// SIGINT, SIGTERM and SIGHUP end the server cleanly; the second SIGINT or SIGTERM ends it at once. (A terminal that is closed sends more
// than one SIGHUP.) A server that was started with nohup stays when its terminal goes.
class EndSignals {
 public:
  // Returns false if the system has no pipe left.
  static bool install() {
    if (pipe2(pipe_, O_CLOEXEC | O_NONBLOCK) != 0) return false;
    struct sigaction action = {};
    action.sa_flags = SA_RESTART;
    action.sa_handler = [](int signal) {
      if (received_ != 0 && signal != SIGHUP) _exit(128 + signal);
      received_ = signal;
      notify();
    };
    sigaction(SIGINT, &action, nullptr);
    sigaction(SIGTERM, &action, nullptr);
    struct sigaction before = {};
    if (sigaction(SIGHUP, nullptr, &before) == 0 && before.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, nullptr);
    signal(SIGPIPE, SIG_IGN);
    return true;
  }
  // Waits for a signal, or for a thread that calls notify().
  static void wait() {
    pollfd ready = {pipe_[0], POLLIN, 0};
    while (poll(&ready, 1, -1) < 0 && errno == EINTR) {
    }
  }
  static void notify() {
    const int error = errno;
    [[maybe_unused]] const ssize_t written = write(pipe_[1], "", 1);
    errno = error;
  }

 private:
  static inline volatile sig_atomic_t received_ = 0;
  static inline int pipe_[2] = {-1, -1};
};

int run(int argc, char** argv) {
  ParsedOptions parsed = parse_options(argc, argv);
  if (!parsed.options) return parsed.exit_code;
  const Options& options = *parsed.options;

  auto loaded = [&] {
    if (!options.quiet) std::cerr << "serve: loading " << printable_path(options.engine.model_path) << std::endl;
    examples::ProgressBar progress("loading", !options.quiet);
    EngineOptions engine_options = options.engine;
    engine_options.on_load = [&](double fraction) { progress.update(fraction); };
    return Engine::load(engine_options);
  }();
  if (!loaded.ok()) return fail(loaded.status().message());
  Engine& engine = **loaded;
  for (const std::string& note : examples::notes_about(engine, options.engine.context_length)) {
    std::cerr << str_cat("serve: ", note, "\n");
  }
  auto chat = examples::create_chat_format(engine.tokenizer(), options.chat_template);
  if (!chat.ok() && !options.chat_template.chosen.empty()) return fail(chat.status().message());
  Api api(engine, options.model_name, std::move(chat), options.http.max_requests, std::chrono::seconds(options.timeout_seconds),
          options.rules);
  RequestLog log;
  HttpServer http(options.http, api.routes(), [&](const HttpExchange& exchange) {
    api.metrics().count_response(exchange.route, exchange.status);
    if (!options.quiet) log.write(exchange);
  });
  const auto port = http.bind(options.host, options.port);
  if (!port.ok()) return fail(port.status().message());
  if (!EndSignals::install()) return fail("the system grants no pipe");

  Status engine_status;
  std::thread engine_thread([&] {
    engine_status = engine.run();
    EndSignals::notify();  // without the engine there is nothing to serve
  });
  bool served = false;
  std::thread http_thread([&] {
    served = http.run();
    EndSignals::notify();
  });

  const std::string host = options.host.find(':') == std::string::npos ? options.host : "[" + options.host + "]";
  std::cout << "serve: " << printable(options.model_name) << " on " << device_name(engine.device()) << ", "
            << examples::types_of(engine) << ", at http://" << host << ":" << *port << "/ (Ctrl-C stops it)" << std::endl;
  EndSignals::wait();

  std::cerr << "serve: shutting down\n";  // one write: other threads write lines, too
  api.shut_down(kPatience);
  http.stop();
  http_thread.join();
  engine_thread.join();
  if (!engine_status.ok()) return fail(engine_status.message());
  return served ? 0 : fail("the system took the server's socket away");
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::bad_alloc&) {
    std::fputs("serve: out of memory\n", stderr);
    return 1;
  } catch (const std::exception& error) {  // from the standard library, for example if the system grants no thread
    std::fprintf(stderr, "serve: %s\n", error.what());
    return 1;
  }
}
