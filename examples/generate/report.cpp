#include "report.h"

#include <algorithm>
#include <iomanip>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include <prologue/engine/base/printable.h>
#include <prologue/kernels/base/kv_types.h>

#include "examples/common/engine_options.h"
#include "examples/common/json_size.h"
#include "io.h"

namespace generate {

using nlohmann::json;
using nlohmann::ordered_json;
using namespace prologue;

namespace {

std::string dump(const ordered_json& object) { return object.dump(-1, ' ', false, ordered_json::error_handler_t::replace); }

// Returns the types as --kv-cache-dtype has them: one type, or K's and V's.
std::string cache_types(const Engine& engine) {
  const std::string k = kv_format_name(engine.k_format()), v = kv_format_name(engine.v_format());
  return k == v ? k : str_cat(k, ",", v);
}

}  // namespace

std::string json_line(const Engine& engine, const std::string& prompt, const Request& request, const Completion& completion) {
  if (!completion.status.ok()) return json_error(prompt, completion.status.message());
  ordered_json line;
  line["prompt"] = prompt;
  line["prompt_tokens"] = request.prompt;
  line["tokens"] = completion.tokens;
  line["text"] = completion.text;
  line["finish_reason"] = finish_reason_name(completion.finish_reason);
  line["device"] = device_name(engine.device());
  line["dtype"] = dtype_name(engine.dtype());
  for (const WeightFormat format : engine.weight_formats()) line["weight_formats"].push_back(weight_format_name(format));
  line["weight_bytes"] = engine.weight_bytes();
  line["ranks"] = engine.num_ranks();
  line["kv_cache_dtype"] = cache_types(engine);
  if (request.num_logprobs >= 0) {
    ordered_json& rows = line["logprobs"] = ordered_json::array();
    for (size_t i = 0; i < completion.logprobs.size(); ++i) {
      ordered_json top = ordered_json::array();
      for (const auto& [token, logprob] : completion.logprobs[i].top) top.push_back({{"token", token}, {"logprob", logprob}});
      rows.push_back({{"token", completion.tokens[i]}, {"logprob", completion.logprobs[i].logprob}, {"top", top}});
    }
  }
  line["timings"] = {{"load_s", engine.load_seconds()},
                     {"prompt_tokens", completion.prompt_tokens},
                     {"cached_tokens", completion.cached_tokens},
                     {"queue_s", completion.queue_seconds},
                     {"prefill_s", completion.prefill_seconds},
                     {"decode_tokens", decoded_tokens(completion)},
                     {"decode_s", completion.decode_seconds},
                     {"draft_tokens", completion.draft_tokens},
                     {"accepted_tokens", completion.accepted_tokens}};
  return dump(line);
}

std::string json_error(const std::string& prompt, const std::string& error) {
  return dump(ordered_json{{"prompt", prompt}, {"error", error}});
}

std::string json_line(const Score& score) {
  ordered_json line;
  line["argmax"] = score.argmax;
  line["logit_of_argmax"] = score.logit_of_argmax;
  line["logit_of_token"] = score.logit_of_token;
  line["logprob_of_token"] = score.logprob_of_token;
  line["perplexity"] = score.perplexity;
  return dump(line);
}

int64_t decoded_tokens(const Completion& completion) {
  const auto tokens = static_cast<int64_t>(completion.tokens.size());
  return std::max<int64_t>(0, tokens - (completion.finish_reason == FinishReason::end ? 0 : 1));
}

std::string summary_table(const Engine& engine, const std::vector<Completion>& completions, double seconds) {
  int64_t prompt_tokens = 0, cached = 0, generated = 0, decoded = 0, drafts = 0, accepted = 0;
  double first_token = 0.0, prefill = 0.0, decode = 0.0;
  std::map<FinishReason, int64_t> reasons;
  for (const Completion& completion : completions) {
    if (!completion.status.ok()) continue;
    const double wait = completion.queue_seconds + completion.prefill_seconds;
    prompt_tokens += completion.prompt_tokens;
    cached += completion.cached_tokens;
    drafts += completion.draft_tokens;
    accepted += completion.accepted_tokens;
    generated += static_cast<int64_t>(completion.tokens.size());
    decoded += decoded_tokens(completion);
    first_token = first_token == 0.0 ? wait : std::min(first_token, wait);
    prefill = std::max(prefill, wait);
    decode = std::max(decode, completion.decode_seconds);
    ++reasons[completion.finish_reason];
  }
  const auto rate = [](int64_t tokens, double time) { return time > 0.0 ? static_cast<double>(tokens) / time : 0.0; };
  const bool several = completions.size() > 1;
  std::string finish_reasons;  // of several completions: "3 end, 1 length"
  for (const auto& [reason, count] : reasons) {
    finish_reasons += str_cat(finish_reasons.empty() ? "" : ", ", several ? str_cat(count, " ") : "", finish_reason_name(reason));
  }
  std::ostringstream out;
  out << std::fixed << std::setprecision(1);
  out << "model                " << printable(engine.config().name) << " (" << engine.config().architecture << ")\n"
      << "device, dtype        " << device_name(engine.device()) << ", " << examples::types_of(engine) << "\n"
      << "KV cache             " << cache_types(engine) << "\n"
      << "loading              " << engine.load_seconds() << " s\n"
      << "prompt tokens        " << prompt_tokens << (cached > 0 ? str_cat(", ", cached, " of them cached") : "") << "\n"
      << "generated tokens     " << generated << "\n"
      << "time to first token  " << first_token * 1e3 << " ms\n"
      << "prefill              " << rate(prompt_tokens - cached, prefill) << " tokens/s\n";
  if (decoded > 0) out << "decoding             " << rate(decoded, decode) << " tokens/s\n";
  if (drafts > 0) out << "drafts               " << drafts << " verified, " << accepted << " accepted\n";
  if (several) out << "all together         " << rate(generated, seconds) << " tokens/s\n";
  out << "finish reason        " << finish_reasons << "\n";
  const EngineStats stats = engine.stats();
  // Returns the pages of each group of layers: "100 + 20".
  const auto pages = [&](int64_t KvGroupStats::*count) {
    std::string text;
    for (const KvGroupStats& group : stats.kv.groups) text += str_cat(text.empty() ? "" : " + ", group.*count);
    return text;
  };
  out << "engine               " << stats.steps << " steps"
      << (stats.replayed_steps > 0 ? str_cat(" (", stats.replayed_steps, " replayed)") : "") << ", " << stats.preemptions
      << " preemptions, cache of " << pages(&KvGroupStats::num_pages) << " pages (" << pages(&KvGroupStats::cached) << " cached, "
      << pages(&KvGroupStats::evictions) << " evictions)\n";
  return out.str();
}

namespace {

void profile_section(std::ostringstream& out, const char* title, std::vector<NodeProfile> rows) {
  if (rows.empty()) return;
  double total = 0.0;
  for (const NodeProfile& row : rows) total += row.seconds;
  out << title << "\n  node                        operation              calls       ms       %   us/call\n";
  for (const NodeProfile& row : rows) {
    out << "  " << std::left << std::setw(28) << row.name << std::setw(20) << row.kind + (row.begins_early ? " *" : "")
        << std::right << std::setw(8) << row.calls << std::setw(9) << row.seconds * 1e3 << std::setw(8)
        << 100.0 * row.seconds / total << std::setw(10) << row.seconds * 1e6 / static_cast<double>(row.calls) << "\n";
  }
  out << "  " << std::left << std::setw(56) << "total" << std::right << std::setw(9) << total * 1e3 << "\n";
  if (std::any_of(rows.begin(), rows.end(), [](const NodeProfile& row) { return row.begins_early; })) {
    out << "  * on a GPU it may begin while the one before it runs; here each was timed alone\n";
  }
}

}  // namespace

std::string profile_table(const ModelRunner::Profile& profile) {
  std::ostringstream out;
  out << std::fixed << std::setprecision(1);
  profile_section(out, "prompt steps", profile.prefill);
  profile_section(out, "decoding steps", profile.decode);
  return out.str();
}

Result<std::vector<std::string>> read_prompts(const std::string& path) {
  PROLOGUE_ASSIGN_OR_RETURN(const std::string content, read_file("--prompts", path));
  const std::string name = "--prompts " + printable_path(path);
  std::vector<std::string> prompts;
  std::istringstream lines(content);
  std::string line;
  for (int64_t number = 1; std::getline(lines, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    constexpr int kMaxDepth = 16;
    const bool too_deep = examples::json_size(line).depth > kMaxDepth;
    const json row = too_deep ? json(json::value_t::discarded) : json::parse(line, nullptr, false);
    const json* prompt = &row;
    if (row.is_object() && row.contains("prompt")) prompt = &row["prompt"];
    if (row.is_discarded() || !prompt->is_string()) {
      return invalid_argument(name, ": line ", number, " must be a JSON string, or an object with a string \"prompt\"");
    }
    prompts.push_back(prompt->get<std::string>());
  }
  if (prompts.empty()) return invalid_argument(name, ": the file has no prompt");
  return prompts;
}

Result<std::vector<ScoreRow>> read_score_file(const std::string& path) {
  PROLOGUE_ASSIGN_OR_RETURN(const std::string content, read_file("--score", path));
  const std::string name = "--score " + printable_path(path);
  // The file is a list of objects of lists: deeper ones would only cost memory.
  constexpr int kMaxDepth = 3;
  constexpr int64_t kMaxValues = int64_t{1} << 24;
  const examples::JsonSize size = examples::json_size(content);
  if (size.values > kMaxValues) return invalid_argument(name, ": the file has more than ", kMaxValues, " values");
  if (size.depth > kMaxDepth)
    return invalid_argument(name, ": the file must be a JSON list of objects: it is nested more than ", kMaxDepth, " deep");
  const json list = json::parse(content, nullptr, false);
  if (list.is_discarded() || !list.is_array()) return invalid_argument(name, ": the file must be a JSON list of objects");
  std::vector<ScoreRow> rows;
  for (const json& item : list) {
    ScoreRow row;
    for (auto [key, target] : {std::pair{"prompt_tokens", &row.prompt_tokens}, std::pair{"tokens", &row.tokens}}) {
      const bool present = item.is_object() && item.contains(key) && item[key].is_array();
      if (!present) return invalid_argument(name, ": row ", rows.size(), " has no list \"", key, "\"");
      for (const json& id : item[key]) {
        if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() > INT32_MAX) {
          return invalid_argument(name, ": row ", rows.size(), ": ", printable(dump(id)), " in \"", key, "\" is not a token id");
        }
        target->push_back(id.get<int32_t>());
      }
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace generate
