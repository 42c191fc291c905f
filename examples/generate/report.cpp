#include "report.h"

#include <algorithm>
#include <iomanip>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include <prologue/engine/tokenizer/utf8.h>

#include "io.h"

namespace generate {

using nlohmann::ordered_json;
using namespace prologue;

namespace {

std::string dump(const ordered_json& object) { return object.dump(-1, ' ', false, ordered_json::error_handler_t::replace); }

// As --kv-cache-dtype has them: one type, or K's and V's.
std::string cache_types(const Engine& engine) {
  const DType k = engine.k_type(), v = engine.v_type();
  return k == v ? dtype_name(k) : str_cat(dtype_name(k), ",", dtype_name(v));
}

}  // namespace

std::string json_line(const Engine& engine, const std::string& prompt, const Request& request, const Completion& completion) {
  if (!completion.status.ok()) return json_error(prompt, completion.status.message());
  ordered_json line;
  line["prompt"] = prompt;
  line["prompt_tokens"] = request.prompt;
  line["tokens"] = completion.tokens;
  line["text"] = completion.text;
  line["stop"] = stop_reason_name(completion.stop);
  line["device"] = device_name(engine.device());
  line["dtype"] = dtype_name(engine.dtype());
  line["kv_cache_dtype"] = cache_types(engine);
  line["timings"] = {{"load_s", engine.load_seconds()},
                     {"prefill_tokens", completion.prefill_tokens},
                     {"prefill_s", completion.prefill_seconds},
                     {"decode_tokens", completion.decode_tokens},
                     {"decode_s", completion.decode_seconds}};
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

std::string summary_table(const Engine& engine, const std::vector<Completion>& completions) {
  int64_t prompt_tokens = 0;
  int64_t generated = 0;
  int64_t decoded = 0;
  double first_token = 0.0;
  double prefill = 0.0;
  double decode = 0.0;
  std::map<StopReason, int64_t> stops;
  for (const Completion& completion : completions) {
    if (!completion.status.ok()) continue;
    prompt_tokens += completion.prefill_tokens;
    generated += static_cast<int64_t>(completion.tokens.size());
    decoded += completion.decode_tokens;
    first_token = first_token == 0.0 ? completion.prefill_seconds : std::min(first_token, completion.prefill_seconds);
    prefill = std::max(prefill, completion.prefill_seconds);
    decode = std::max(decode, completion.decode_seconds);
    ++stops[completion.stop];
  }
  const auto rate = [](int64_t tokens, double seconds) { return seconds > 0.0 ? static_cast<double>(tokens) / seconds : 0.0; };
  std::string stop_reasons;  // of several completions: "3 eos, 1 max_tokens"
  for (const auto& [reason, count] : stops) {
    stop_reasons +=
        str_cat(stop_reasons.empty() ? "" : ", ", completions.size() > 1 ? str_cat(count, " ") : "", stop_reason_name(reason));
  }
  std::ostringstream out;
  out << std::fixed << std::setprecision(1);
  out << "model                " << printable(engine.config().name) << " (" << engine.config().architecture << ")\n"
      << "device, dtype        " << device_name(engine.device()) << ", " << dtype_name(engine.dtype()) << "\n"
      << "KV cache             " << cache_types(engine) << "\n"
      << "loading              " << engine.load_seconds() << " s\n"
      << "prompt tokens        " << prompt_tokens << "\n"
      << "generated tokens     " << generated << "\n"
      << "time to first token  " << first_token * 1e3 << " ms\n"
      << "prefill              " << rate(prompt_tokens, prefill) << " tokens/s\n";
  if (decoded > 0) out << "decoding             " << rate(decoded, decode) << " tokens/s\n";
  out << "stop reason          " << stop_reasons << "\n";
  return out.str();
}

namespace {

void profile_section(std::ostringstream& out, const char* title, std::vector<NodeProfile> rows) {
  if (rows.empty()) return;
  double total = 0.0;
  for (const NodeProfile& row : rows) total += row.seconds;
  out << title << "\n  node                        operation              calls       ms       %   us/call\n";
  for (const NodeProfile& row : rows) {
    out << "  " << std::left << std::setw(28) << row.name << std::setw(20) << row.kind << std::right << std::setw(8) << row.calls
        << std::setw(9) << row.seconds * 1e3 << std::setw(8) << 100.0 * row.seconds / total << std::setw(10)
        << row.seconds * 1e6 / static_cast<double>(row.calls) << "\n";
  }
  out << "  " << std::left << std::setw(56) << "total" << std::right << std::setw(9) << total * 1e3 << "\n";
}

}  // namespace

std::string profile_table(const Engine::Profile& profile) {
  std::ostringstream out;
  out << std::fixed << std::setprecision(1);
  profile_section(out, "prompt steps", profile.prefill);
  profile_section(out, "decoding steps", profile.decode);
  return out.str();
}

Result<std::vector<ScoreRow>> read_score_file(const std::string& path) {
  PROLOGUE_ASSIGN_OR_RETURN(const std::string content, read_file("--score", path));
  const std::string name = "--score " + printable_path(path);
  // A list of objects of lists: deeper ones would only cost memory.
  constexpr int kMaxDepth = 3;
  bool too_deep = false;
  const auto check_depth = [&](int depth, ordered_json::parse_event_t event, ordered_json&) {
    using Event = ordered_json::parse_event_t;
    too_deep = too_deep || (depth >= kMaxDepth && (event == Event::array_start || event == Event::object_start));
    return !too_deep;
  };
  const ordered_json json = ordered_json::parse(content, check_depth, false);
  if (too_deep)
    return invalid_argument(name, ": the file must be a JSON list of objects: it is nested more than ", kMaxDepth, " deep");
  if (json.is_discarded() || !json.is_array()) return invalid_argument(name, ": the file must be a JSON list of objects");
  std::vector<ScoreRow> rows;
  for (const ordered_json& item : json) {
    ScoreRow row;
    for (auto [key, target] : {std::pair{"prompt_tokens", &row.prompt_tokens}, std::pair{"tokens", &row.tokens}}) {
      const bool present = item.is_object() && item.contains(key) && item[key].is_array();
      if (!present) return invalid_argument(name, ": row ", rows.size(), " has no list \"", key, "\"");
      for (const ordered_json& id : item[key]) {
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
