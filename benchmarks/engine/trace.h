// This file reads arrival traces of real services: JSONL files with one request a line. They have lengths and times but no text. What two
// prompts have in common is told by hash ids: each stands for one block of prompt tokens.
//
//   Mooncake  {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, ...]}
//             milliseconds, blocks of 512 tokens
//   Bailian   {"chat_id": 159, "parent_chat_id": 55, "timestamp": 61.114, "input_length": 521, "output_length": 132, "type": "text",
//              "turn": 2, "hash_ids": [1089, 1090, ...]}
//             seconds, blocks of 16 tokens
//
// A file with `chat_id` in its first row is a Bailian trace. Other members of a row are ignored. A conversation's next turn arrives when the
// trace says so, whether or not its last answer is complete.
#pragma once

#include <cstdint>
#include <istream>
#include <string>
#include <vector>

#include "benchmarks/engine/workload.h"

namespace prologue::bench {

struct TraceRow {
  double seconds = 0.0;           // as in the file
  int64_t input_length = 0;       // tokens, at least 1
  int64_t output_length = 0;      // tokens, at least 0
  std::vector<int64_t> hash_ids;  // may be missing in the file
};

struct Trace {
  int64_t block_size = 0;  // tokens of a hash id
  std::vector<TraceRow> rows;
};

// Reads at most `max_rows` rows; empty lines are skipped. `name` is the file's, for messages. data_loss: a line that is not as above (the
// message has its number and the rule), or no row at all.
Result<Trace> read_trace(std::istream& in, const std::string& name, int64_t max_rows);
// not_found: the file cannot be read.
Result<Trace> read_trace(const std::string& path, int64_t max_rows);

// Returns the prompt of row `index`. Block i has the tokens of hash_ids[i]: equal ids give equal tokens, in every row and run; tokens of
// different ids are independent. The last block may be cut. Ids past the prompt's end are ignored. Where there are too few ids, the rest of
// the prompt is shared with no other row.
std::vector<int32_t> trace_prompt(const Trace& trace, size_t index, int64_t vocab_size);

// Returns the rows as requests, in order of time, from time 0 on and `speed` times as fast. One that generates nothing in the trace
// generates one token. Rows that are longer than the context are left out; `num_left_out` says how many.
struct TraceOptions {
  int64_t vocab_size = 0;
  int64_t context_length = 0;
  double speed = 1.0;
};
Workload trace_workload(const Trace& trace, const TraceOptions& options, int64_t& num_left_out);

}  // namespace prologue::bench
