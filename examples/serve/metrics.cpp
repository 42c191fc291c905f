#include "metrics.h"

#include <algorithm>
#include <charconv>

namespace serve {

using namespace prologue;

namespace {

void write_head(std::string& out, const std::string& name, const char* type, const char* help) {
  out += str_cat("# HELP ", name, " ", help, "\n# TYPE ", name, " ", type, "\n");
}

// A stream would round to six digits.
std::string number(double value) {
  char digits[32];
  return {digits, std::to_chars(digits, digits + sizeof digits, value).ptr};
}
std::string number(int64_t value) { return std::to_string(value); }

template <class Value>
void write_value(std::string& out, const char* name, const char* type, const char* help, Value value) {
  write_head(out, name, type, help);
  out += str_cat(name, " ", number(value), "\n");
}

void write_engine(std::string& out, const EngineStats& stats) {
  write_value(out, "prologue_waiting", "gauge", "Samples that wait.", stats.waiting);
  write_value(out, "prologue_running", "gauge", "Samples that are computed.", stats.running);
  write_head(out, "prologue_finished_total", "counter", "Samples that have ended, by reason.");
  for (size_t i = 0; i < stats.finished.size(); ++i) {
    out += str_cat("prologue_finished_total{reason=\"", finish_reason_name(static_cast<FinishReason>(i)), "\"} ",
                   stats.finished[i], "\n");
  }
  write_value(out, "prologue_refused_total", "counter", "Requests that the engine has refused.", stats.refused);
  write_value(out, "prologue_preemptions_total", "counter", "Samples whose pages were taken away, to be computed again.",
              stats.preemptions);
  write_value(out, "prologue_steps_total", "counter", "Steps of the engine.", stats.steps);
  write_value(out, "prologue_step_seconds_total", "counter", "Time in steps.", stats.step_seconds);
  write_value(out, "prologue_wait_seconds_total", "counter", "Time in steps, waiting for the device.", stats.wait_seconds);
  write_value(out, "prologue_prompt_tokens_total", "counter", "Tokens of prompts.", stats.prompt_tokens);
  write_value(out, "prologue_cached_tokens_total", "counter", "Tokens of prompts that were found in the KV cache.",
              stats.cached_tokens);
  write_value(out, "prologue_generated_tokens_total", "counter", "Generated tokens.", stats.generated_tokens);
  write_value(out, "prologue_draft_tokens_total", "counter", "Guessed tokens that were verified (--speculate, --draft).",
              stats.draft_tokens);
  write_value(out, "prologue_accepted_tokens_total", "counter", "Guessed tokens that were accepted.", stats.accepted_tokens);
  write_value(out, "prologue_captured_graphs_total", "counter", "CUDA graphs that were captured.", stats.captured_graphs);
  write_value(out, "prologue_replayed_steps_total", "counter", "Steps that replayed a CUDA graph.", stats.replayed_steps);
}

void write_cache(std::string& out, const KvCacheStats& cache) {
  write_head(out, "prologue_kv_pages", "gauge", "Pages of the KV cache, by group of layers and state.");
  for (size_t group = 0; group < cache.groups.size(); ++group) {
    const KvGroupStats& pages = cache.groups[group];
    for (const auto& [state, count] :
         {std::pair{"used", pages.used}, std::pair{"cached", pages.cached}, std::pair{"free", pages.free}}) {
      out += str_cat("prologue_kv_pages{group=\"", group, "\",state=\"", state, "\"} ", count, "\n");
    }
  }
  write_head(out, "prologue_kv_shared_pages", "gauge", "Used pages that several samples share.");
  for (size_t group = 0; group < cache.groups.size(); ++group) {
    out += str_cat("prologue_kv_shared_pages{group=\"", group, "\"} ", cache.groups[group].shared, "\n");
  }
  write_head(out, "prologue_kv_evictions_total", "counter", "Cached pages that were given to other sequences.");
  for (size_t group = 0; group < cache.groups.size(); ++group) {
    out += str_cat("prologue_kv_evictions_total{group=\"", group, "\"} ", cache.groups[group].evictions, "\n");
  }
}

}  // namespace

void Metrics::Histogram::add(double value, int64_t count) {
  const auto bound = std::lower_bound(bounds.begin(), bounds.end(), value);
  counts[static_cast<size_t>(bound - bounds.begin())] += count;
  sum += value * static_cast<double>(count);
}

void Metrics::Histogram::write(std::string& out) const {
  write_head(out, name, "histogram", help);
  int64_t total = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    total += counts[i];
    out += str_cat(name, "_bucket{le=\"", i < bounds.size() ? number(bounds[i]) : "+Inf", "\"} ", total, "\n");
  }
  out += str_cat(name, "_sum ", number(sum), "\n", name, "_count ", total, "\n");
}

void Metrics::count_response(const std::string& route, int status) {
  const std::lock_guard lock(mutex_);
  ++responses_[{route, status}];
}

void Metrics::first_token(double seconds) {
  const std::lock_guard lock(mutex_);
  first_token_.add(seconds);
}

void Metrics::next_tokens(double seconds, int64_t num_tokens) {
  const std::lock_guard lock(mutex_);
  token_.add(seconds / static_cast<double>(num_tokens), num_tokens);
}

void Metrics::request(double seconds) {
  const std::lock_guard lock(mutex_);
  request_.add(seconds);
}

std::string Metrics::text(const EngineStats& stats) const {
  std::string out;
  write_engine(out, stats);
  write_cache(out, stats.kv);
  const std::lock_guard lock(mutex_);
  write_head(out, "prologue_http_responses_total", "counter", "Responses, by path and status code.");
  for (const auto& [key, count] : responses_) {
    out += str_cat("prologue_http_responses_total{path=\"", key.first, "\",code=\"", key.second, "\"} ", count, "\n");
  }
  for (const Histogram* histogram : {&first_token_, &token_, &request_}) histogram->write(out);
  return out;
}

}  // namespace serve
