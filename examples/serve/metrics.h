// This file has what /metrics says: the engine's statistics and the server's own counts, in the text format of Prometheus.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <prologue/engine/engine.h>

namespace serve {

// Any thread may call any function.
class Metrics {
 public:
  void count_response(const std::string& route, int status);
  void first_token(double seconds);                      // since the request arrived
  void next_tokens(double seconds, int64_t num_tokens);  // since the tokens before them
  void request(double seconds);                          // from its arrival to its last token

  std::string text(const prologue::EngineStats& stats) const;

 private:
  // Counts how many values were at most each bound.
  struct Histogram {
    const char* name;
    const char* help;
    std::vector<double> bounds;
    std::vector<int64_t> counts = std::vector<int64_t>(bounds.size() + 1);  // the last: above all bounds
    double sum = 0.0;

    void add(double value, int64_t count = 1);
    void write(std::string& out) const;
  };

  mutable std::mutex mutex_;
  std::map<std::pair<std::string, int>, int64_t> responses_;  // by route and status
  Histogram first_token_{"prologue_time_to_first_token_seconds",
                         "From the arrival of a request to its first token.",
                         {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100}};
  Histogram token_{"prologue_time_per_output_token_seconds",
                   "From one token of a sample to the next.",
                   {0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 1, 2.5, 5}};
  Histogram request_{"prologue_request_duration_seconds",
                     "From the arrival of a request to its last token.",
                     {0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000}};
};

}  // namespace serve
