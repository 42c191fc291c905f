#include "api.h"

#include <ctime>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>

#include <prologue/engine/base/printable.h>

#include "answer.h"
#include "errors.h"
#include "generation.h"
#include "http_rules.h"
#include "web_page.h"

namespace serve {

using nlohmann::ordered_json;
using namespace prologue;

// Counts a request among those in work; throws ApiError if there are too many.
class Api::InWork {
 public:
  explicit InWork(Api& api) : api_(api) {
    const std::lock_guard lock(api_.mutex_);
    if (api_.shutting_down_) throw shutting_down();
    if (api_.num_in_work_ >= api_.max_requests_) {
      throw ApiError{429,
                     str_cat("the server works on ", api_.num_in_work_, " requests, which is its limit: try again later"),
                     {},
                     "rate_limit_exceeded"};
    }
    ++api_.num_in_work_;
  }
  ~InWork() {
    const std::lock_guard lock(api_.mutex_);
    --api_.num_in_work_;
    api_.changed_.notify_all();
  }
  InWork(const InWork&) = delete;
  InWork& operator=(const InWork&) = delete;

 private:
  Api& api_;
};

namespace {

ApiError client_gone() { return {400, "the client has closed the connection"}; }  // nobody reads it

// Returns the note for the log.
std::string note_of(const Usage& usage) { return str_cat(usage.prompt_tokens, " + ", usage.completion_tokens, " tokens"); }

// Sends an answer while it is generated, as server-sent events.
class Stream {
 public:
  Stream(ApiRequest request, const ApiModel& model, Engine& engine, const Generation::Limits& limits, Metrics& metrics,
         const Peer& peer)
      : request_(std::move(request)), answer_(request_, model), generation_(engine, request_, limits, metrics), peer_(peer) {}

  bool run(const HttpResponse::Write& write) {
    try {
      std::string events;
      for (size_t choice = 0; choice < request_.num_choices(); ++choice) {
        events = answer_.first_chunk(choice);
        if (request_.common.max_tokens == 0) events += answer_.last_chunk(choice, FinishReason::length);
        if (!events.empty() && !write(events)) return false;
      }
      while (const std::optional<Update> update = generation_.next(peer_)) {
        events.clear();
        if (!update->text.empty() || !update->logprobs.empty()) {
          events += answer_.chunk(update->choice, update->text, update->tokens, update->logprobs);
        }
        if (update->completion) events += answer_.last_chunk(update->choice, update->completion->finish_reason);
        if (!events.empty() && !write(events)) return false;
      }
      peer_.note(note_of(generation_.usage()));
      if (generation_.gone()) return false;
      return write((request_.include_usage ? answer_.usage_chunk(generation_.usage()) : "") + "data: [DONE]\n\n");
    } catch (const ApiError& error) {  // the status has been sent: the error is the last event
      return write("data: " + error_body(error) + "\n\n");
    }
  }

 private:
  const ApiRequest request_;
  Answer answer_;
  Generation generation_;
  const Peer& peer_;
};

}  // namespace

Api::Api(Engine& engine, std::string model_name, Result<ChatFormat> chat, int64_t max_requests, std::chrono::seconds time_limit,
         const ApiRules& rules)
    : engine_(engine),
      unknown_(rules.strict),
      model_{std::move(model_name), &engine, std::move(chat), rules.private_prefixes, &unknown_},
      max_requests_(max_requests),
      time_limit_(time_limit),
      started_(std::time(nullptr)) {}

std::vector<HttpRoute> Api::routes() {
  const auto list_models = [this](const HttpRequest& request, const Peer&) { return models(request); };
  return {
      {"GET", "/", false, [this](const HttpRequest&, const Peer&) { return page(); }},
      {"GET", "/health", false, [this](const HttpRequest&, const Peer&) { return health(); }},
      {"GET", "/metrics", false,
       [this](const HttpRequest&, const Peer&) -> HttpResponse {
         return {.content_type = "text/plain; version=0.0.4", .body = metrics_.text(engine_.stats())};
       }},
      {"GET", "/v1/models", true, list_models},
      {"GET", "/v1/models/", true, list_models},
      {"POST", "/v1/completions", true,
       [this](const HttpRequest& request, const Peer& peer) { return generate(false, request, peer); }},
      {"POST", "/v1/chat/completions", true,
       [this](const HttpRequest& request, const Peer& peer) { return generate(true, request, peer); }},
  };
}

HttpResponse Api::models(const HttpRequest& request) const {
  const ordered_json model = {{"id", model_.name},
                              {"object", "model"},
                              {"created", started_},
                              {"owned_by", "prologue"},
                              {"max_model_len", engine_.context_length()}};
  const std::string_view path = request.path;
  constexpr std::string_view kList = "/v1/models";
  const std::string_view name = path.size() > kList.size() ? path.substr(kList.size() + 1) : std::string_view();
  if (name.empty()) return {.body = ordered_json{{"object", "list"}, {"data", ordered_json::array({model})}}.dump()};
  if (name == model_.name) return {.body = model.dump()};
  throw ApiError{404, str_cat("there is no model ", in_quotes(name), ": this server has ", in_quotes(model_.name)), "model",
                 "model_not_found"};
}

HttpResponse Api::health() const {
  if (shutting_down_) throw shutting_down();
  return {.body = R"({"status":"ok"})"};
}

// The page's script and style have a random word that its policy names: nothing else in it may run.
HttpResponse Api::page() const {
  std::random_device device;
  const std::string nonce = hexadecimal(device()) + hexadecimal(device()) + hexadecimal(device()) + hexadecimal(device());
  std::string html(kWebPage);
  constexpr std::string_view kMark = "@NONCE@";
  for (size_t at = html.find(kMark); at != html.npos; at = html.find(kMark, at)) html.replace(at, kMark.size(), nonce);
  const std::string policy = str_cat("default-src 'none'; script-src 'nonce-", nonce, "'; style-src 'nonce-", nonce,
                                     "'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'");
  return {.content_type = "text/html; charset=utf-8",
          .body = std::move(html),
          .headers = {{"Content-Security-Policy", policy},
                      {"X-Content-Type-Options", "nosniff"},
                      {"Referrer-Policy", "no-referrer"},
                      {"Cache-Control", "no-store"}}};
}

HttpResponse Api::generate(bool chat, const HttpRequest& http, const Peer& peer) {
  const Generation::Limits limits = {Generation::Clock::now(), time_limit_};
  const auto in_work = std::make_shared<InWork>(*this);
  ApiRequest request = chat ? read_chat_request(http.body, model_) : read_completion_request(http.body, model_);
  if (!score_prompts(engine_, request, limits, peer, shutting_down_)) throw client_gone();
  if (request.stream) {
    // The request is submitted before the status is sent: what the engine refuses gets the status of its error.
    const auto stream = std::make_shared<Stream>(std::move(request), model_, engine_, limits, metrics_, peer);
    return {.content_type = "text/event-stream",
            .headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}},
            .stream = [stream, in_work](const HttpResponse::Write& write) { return stream->run(write); }};
  }
  Generation generation(engine_, request, limits, metrics_);
  Completion none;  // of an echo without generated tokens
  none.finish_reason = FinishReason::length;
  std::vector<Completion> choices(request.num_choices(), none);
  while (std::optional<Update> update = generation.next(peer)) {
    if (update->completion) choices[update->choice] = *std::move(update->completion);
  }
  peer.note(note_of(generation.usage()));
  if (generation.gone()) throw client_gone();
  return {.body = Answer(request, model_).whole(choices, generation.usage())};
}

void Api::shut_down(std::chrono::seconds patience) {
  shutting_down_ = true;
  engine_.shutdown();
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, patience, [this] { return num_in_work_ == 0; });
}

}  // namespace serve
