// The API says what the server does at each path.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include <prologue/engine/engine.h>

#include "api_request.h"
#include "http.h"
#include "metrics.h"

namespace serve {

struct ApiRules {
  bool strict = false;            // a field that the server does not know is an error
  bool private_prefixes = false;  // only requests with the same cache_salt use the same prefixes
};

class Api {
 public:
  // The engine must outlive the API. At most `max_requests` are in work or in the engine's queue at once.
  Api(prologue::Engine& engine, std::string model_name, prologue::Result<prologue::ChatFormat> chat, int64_t max_requests,
      std::chrono::seconds time_limit, const ApiRules& rules);

  std::vector<HttpRoute> routes();
  Metrics& metrics() { return metrics_; }

  // From now on, requests get an error that says that the server shuts down, and so do those in work as soon as Engine::shutdown() has
  // ended them. Waits for these, `patience` at most.
  void shut_down(std::chrono::seconds patience);

 private:
  class InWork;
  HttpResponse models(const HttpRequest& request) const;
  HttpResponse health() const;
  HttpResponse page() const;
  HttpResponse generate(bool chat, const HttpRequest& request, const Peer& peer);

  prologue::Engine& engine_;
  UnknownFields unknown_;
  const ApiModel model_;
  const int64_t max_requests_;
  const std::chrono::seconds time_limit_;
  const int64_t started_;  // seconds since 1970
  Metrics metrics_;
  std::atomic<bool> shutting_down_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t num_in_work_ = 0;
};

}  // namespace serve
