#include "benchmarks/engine/trace.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

namespace prologue::bench {

namespace {

using nlohmann::json;

constexpr int64_t kLargestLength = int64_t{1} << 31;  // what an int32_t index can reach

// Names a line of a trace, for its errors.
struct Line {
  const std::string& name;
  int64_t number;
  template <class... Parts>
  Status error(const Parts&... parts) const {
    return data_loss(name, ":", number, ": ", parts...);
  }
};

Result<int64_t> length(const json& row, const char* key, int64_t least, const Line& line) {
  const auto found = row.find(key);
  if (found == row.end()) return line.error(key, " is missing: every row must have it");
  const auto value = found->is_number_integer() ? found->get<int64_t>() : int64_t{-1};
  if (value < least || value >= kLargestLength) {
    return line.error(key, " is ", found->dump(), ": it must be a whole number from ", least, " to ", kLargestLength - 1);
  }
  return value;
}

Result<TraceRow> parse_row(const json& row, double seconds_per_unit, const Line& line) {
  TraceRow result;
  const auto timestamp = row.find("timestamp");
  if (timestamp == row.end()) return line.error("timestamp is missing: every row must have it");
  if (!timestamp->is_number() || timestamp->get<double>() < 0.0) {
    return line.error("timestamp is ", timestamp->dump(), ": it must be a number of at least 0");
  }
  result.seconds = timestamp->get<double>() * seconds_per_unit;
  PROLOGUE_ASSIGN_OR_RETURN(result.input_length, length(row, "input_length", 1, line));
  PROLOGUE_ASSIGN_OR_RETURN(result.output_length, length(row, "output_length", 0, line));
  const auto ids = row.find("hash_ids");
  if (ids == row.end()) return result;
  if (!ids->is_array()) return line.error("hash_ids is ", ids->type_name(), ": it must be a list");
  for (const json& id : *ids) {
    if (!id.is_number_integer()) return line.error("hash_ids has ", id.dump(), ": they must be whole numbers");
    result.hash_ids.push_back(id.get<int64_t>());
  }
  return result;
}

// This is SplitMix64.
uint64_t split_mix64(uint64_t z) {
  z += 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

// Appends the tokens of a hash id, or of what only this row has.
void append_block(std::vector<int32_t>& tokens, uint64_t key, bool is_hash_id, int64_t count, int64_t vocab_size) {
  const auto vocab = static_cast<uint64_t>(vocab_size);
  const uint64_t seed = split_mix64(key * 2 + (is_hash_id ? 1 : 0));
  for (int64_t i = 0; i < count; ++i) tokens.push_back(static_cast<int32_t>(split_mix64(seed + static_cast<uint64_t>(i)) % vocab));
}

}  // namespace

Result<Trace> read_trace(std::istream& in, const std::string& name, int64_t max_rows) {
  Trace trace;
  int64_t number = 0;
  bool is_bailian = false;
  for (std::string text; static_cast<int64_t>(trace.rows.size()) < max_rows && std::getline(in, text);) {
    const Line line{name, ++number};
    if (text.find_first_not_of(" \t\r") == std::string::npos) continue;
    const json row = json::parse(text, nullptr, false);
    if (!row.is_object()) return line.error("this is not a JSON object: every line must be one");
    if (trace.rows.empty()) {
      is_bailian = row.contains("chat_id");
      trace.block_size = is_bailian ? 16 : 512;
    } else if (row.contains("chat_id") != is_bailian) {
      return line.error("chat_id is ", is_bailian ? "missing" : "present",
                        ": all rows must be of one kind, Mooncake's or Bailian's");
    }
    PROLOGUE_ASSIGN_OR_RETURN(TraceRow parsed, parse_row(row, is_bailian ? 1.0 : 1e-3, line));
    trace.rows.push_back(std::move(parsed));
  }
  if (trace.rows.empty()) return data_loss(name, ": there is no row in it: a trace must have at least one");
  return trace;
}

Result<Trace> read_trace(const std::string& path, int64_t max_rows) {
  std::ifstream in(path);
  if (!in) return not_found(path, ": this trace cannot be read");
  return read_trace(in, path, max_rows);
}

std::vector<int32_t> trace_prompt(const Trace& trace, size_t index, int64_t vocab_size) {
  const TraceRow& row = trace.rows[index];
  std::vector<int32_t> tokens;
  tokens.reserve(static_cast<size_t>(row.input_length));
  for (const int64_t id : row.hash_ids) {
    const int64_t left = row.input_length - static_cast<int64_t>(tokens.size());
    append_block(tokens, static_cast<uint64_t>(id), true, std::min(left, trace.block_size), vocab_size);
  }
  append_block(tokens, index, false, row.input_length - static_cast<int64_t>(tokens.size()), vocab_size);
  return tokens;
}

Workload trace_workload(const Trace& trace, const TraceOptions& options, int64_t& num_left_out) {
  num_left_out = 0;
  double start = trace.rows.front().seconds;
  for (const TraceRow& row : trace.rows) start = std::min(start, row.seconds);
  Workload workload;
  for (size_t i = 0; i < trace.rows.size(); ++i) {
    const TraceRow& row = trace.rows[i];
    const int64_t max_tokens = std::max<int64_t>(1, row.output_length);
    if (row.input_length + max_tokens > options.context_length) {
      ++num_left_out;
      continue;
    }
    workload.push_back({(row.seconds - start) / options.speed, trace_prompt(trace, i, options.vocab_size), max_tokens});
  }
  std::stable_sort(workload.begin(), workload.end(), [](const Arrival& a, const Arrival& b) { return a.seconds < b.seconds; });
  return workload;
}

}  // namespace prologue::bench
