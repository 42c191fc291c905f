#include "benchmarks/engine/trace.h"

#include <gtest/gtest.h>

#include <set>
#include <sstream>

namespace prologue::bench {
namespace {

Result<Trace> read(const std::string& text, int64_t max_rows = 1000) {
  std::istringstream in(text);
  return read_trace(in, "trace.jsonl", max_rows);
}

constexpr const char* kMooncake =
    "{\"timestamp\": 27482, \"input_length\": 1100, \"output_length\": 52, \"hash_ids\": [46, 47, 2353]}\n"
    "{\"timestamp\": 30535, \"input_length\": 1024, \"output_length\": 26, \"hash_ids\": [46, 47]}\n"
    "{\"timestamp\": 30535, \"input_length\": 600, \"output_length\": 1, \"hash_ids\": [46, 99]}\n";

constexpr const char* kBailian =
    "{\"chat_id\": 0, \"parent_chat_id\": -1, \"timestamp\": 0.031, \"input_length\": 33, \"output_length\": 5, \"type\": "
    "\"text\", "
    "\"turn\": 1, \"hash_ids\": [5, 6, 7]}\r\n"
    "\n"
    "{\"chat_id\": 1, \"parent_chat_id\": 0, \"timestamp\": 61.114, \"input_length\": 50, \"output_length\": 0, \"type\": "
    "\"image\", "
    "\"turn\": 2, \"hash_ids\": [5, 6, 8]}\n";

size_t common_prefix(const std::vector<int32_t>& a, const std::vector<int32_t>& b) {
  return static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

TEST(Trace, ReadsMooncakesRows) {
  const auto trace = read(kMooncake);
  ASSERT_TRUE(trace.ok()) << trace.status().message();
  EXPECT_EQ(trace->block_size, 512);
  ASSERT_EQ(trace->rows.size(), 3u);
  EXPECT_DOUBLE_EQ(trace->rows[0].seconds, 27.482);
  EXPECT_EQ(trace->rows[0].input_length, 1100);
  EXPECT_EQ(trace->rows[0].output_length, 52);
  EXPECT_EQ(trace->rows[0].hash_ids, (std::vector<int64_t>{46, 47, 2353}));
}

TEST(Trace, ReadsBailiansRows) {
  const auto trace = read(kBailian);
  ASSERT_TRUE(trace.ok()) << trace.status().message();
  EXPECT_EQ(trace->block_size, 16);
  ASSERT_EQ(trace->rows.size(), 2u);
  EXPECT_DOUBLE_EQ(trace->rows[1].seconds, 61.114);
  EXPECT_EQ(trace->rows[1].hash_ids, (std::vector<int64_t>{5, 6, 8}));
}

TEST(Trace, ReadsNoMoreRowsThanAsked) { EXPECT_EQ(read(kMooncake, 2)->rows.size(), 2u); }

TEST(Trace, EqualIdsGiveEqualTokens) {
  const auto trace = read(kMooncake);
  ASSERT_TRUE(trace.ok());
  const auto first = trace_prompt(*trace, 0, 49152), second = trace_prompt(*trace, 1, 49152),
             third = trace_prompt(*trace, 2, 49152);
  EXPECT_EQ(first.size(), 1100u);
  EXPECT_EQ(second.size(), 1024u);
  EXPECT_EQ(common_prefix(first, second), 1024u);
  EXPECT_EQ(common_prefix(first, third), 512u);
  EXPECT_EQ(std::set<int32_t>(first.begin(), first.begin() + 512).size() > 450, true);  // few of 512 random tokens coincide
  for (const int32_t id : trace_prompt(*trace, 0, 300)) EXPECT_TRUE(id >= 0 && id < 300);
}

TEST(Trace, IdsMayBeTooManyTooFewOrMissing) {
  const auto trace = read(
      "{\"timestamp\": 0, \"input_length\": 512, \"output_length\": 1, \"hash_ids\": [1, 2, 3]}\n"
      "{\"timestamp\": 0, \"input_length\": 2048, \"output_length\": 1, \"hash_ids\": [1]}\n"
      "{\"timestamp\": 0, \"input_length\": 2048, \"output_length\": 1, \"hash_ids\": [1]}\n"
      "{\"timestamp\": 0, \"input_length\": 700, \"output_length\": 1}\n");
  ASSERT_TRUE(trace.ok()) << trace.status().message();
  std::vector<std::vector<int32_t>> prompts;
  for (size_t i = 0; i < 4; ++i) {
    prompts.push_back(trace_prompt(*trace, i, 49152));
    EXPECT_EQ(static_cast<int64_t>(prompts[i].size()), trace->rows[i].input_length);
  }
  EXPECT_EQ(common_prefix(prompts[0], prompts[1]), 512u);
  EXPECT_LT(common_prefix(prompts[1], prompts[2]), 520u);  // the tail is the row's own
  EXPECT_LT(common_prefix(prompts[0], prompts[3]), 8u);
}

TEST(Trace, IdsOfRowsAreNotThoseOfBlocks) {  // the tail of row 1 is not the block of hash id 1
  const auto trace = read(
      "{\"timestamp\": 0, \"input_length\": 512, \"output_length\": 1, \"hash_ids\": [1]}\n"
      "{\"timestamp\": 0, \"input_length\": 512, \"output_length\": 1, \"hash_ids\": []}\n");
  ASSERT_TRUE(trace.ok());
  EXPECT_LT(common_prefix(trace_prompt(*trace, 0, 49152), trace_prompt(*trace, 1, 49152)), 8u);
}

TEST(Trace, BecomesAWorkload) {
  const auto trace = read(
      "{\"timestamp\": 9000, \"input_length\": 10, \"output_length\": 5, \"hash_ids\": [1]}\n"
      "{\"timestamp\": 5000, \"input_length\": 20, \"output_length\": 0, \"hash_ids\": [1]}\n"
      "{\"timestamp\": 6000, \"input_length\": 95, \"output_length\": 6, \"hash_ids\": [1]}\n");
  ASSERT_TRUE(trace.ok()) << trace.status().message();
  int64_t num_left_out = -1;
  const Workload workload = trace_workload(*trace, {1000, 100, 2.0}, num_left_out);
  EXPECT_EQ(num_left_out, 1);  // 95 + 6 tokens
  ASSERT_EQ(workload.size(), 2u);
  EXPECT_EQ(workload[0].seconds, 0.0);
  EXPECT_EQ(workload[0].prompt.size(), 20u);
  EXPECT_EQ(workload[0].max_tokens, 1);
  EXPECT_EQ(workload[1].seconds, 2.0);
  EXPECT_EQ(workload[1].max_tokens, 5);
}

TEST(Trace, ErrorsNameTheLineAndTheRule) {
  const std::string good = "{\"timestamp\": 0, \"input_length\": 5, \"output_length\": 1, \"hash_ids\": [1]}\n\n";
  const auto message = [&](const std::string& row) {
    const auto trace = read(good + row);
    EXPECT_EQ(trace.status().code(), StatusCode::data_loss) << row;
    return trace.status().message();
  };
  const std::string at = "trace.jsonl:3: ";
  EXPECT_EQ(message("{\"timestamp\": 0"), at + "this is not a JSON object: every line must be one");
  EXPECT_EQ(message("[1]"), at + "this is not a JSON object: every line must be one");
  EXPECT_EQ(message("{\"input_length\": 1, \"output_length\": 1}"), at + "timestamp is missing: every row must have it");
  EXPECT_EQ(message("{\"timestamp\": \"now\", \"input_length\": 1, \"output_length\": 1}"),
            at + "timestamp is \"now\": it must be a number of at least 0");
  EXPECT_EQ(message("{\"timestamp\": -1, \"input_length\": 1, \"output_length\": 1}"),
            at + "timestamp is -1: it must be a number of at least 0");
  EXPECT_EQ(message("{\"timestamp\": 0, \"output_length\": 1}"), at + "input_length is missing: every row must have it");
  for (const std::string wrong : {"0", "-3", "1.5", "\"12\"", "2147483648", "18446744073709551615", "null"}) {
    EXPECT_EQ(message("{\"timestamp\": 0, \"input_length\": " + wrong + ", \"output_length\": 1}"),
              at + "input_length is " + wrong + ": it must be a whole number from 1 to 2147483647");
  }
  EXPECT_EQ(message("{\"timestamp\": 0, \"input_length\": 1, \"output_length\": -1}"),
            at + "output_length is -1: it must be a whole number from 0 to 2147483647");
  EXPECT_EQ(message("{\"timestamp\": 0, \"input_length\": 1, \"output_length\": 1, \"hash_ids\": 5}"),
            at + "hash_ids is number: it must be a list");
  EXPECT_EQ(message("{\"timestamp\": 0, \"input_length\": 1, \"output_length\": 1, \"hash_ids\": [1, \"a\"]}"),
            at + "hash_ids has \"a\": they must be whole numbers");
  EXPECT_EQ(message("{\"chat_id\": 1, \"timestamp\": 0, \"input_length\": 1, \"output_length\": 1}"),
            at + "chat_id is present: all rows must be of one kind, Mooncake's or Bailian's");
  EXPECT_EQ(read("\n\n").status().message(), "trace.jsonl: there is no row in it: a trace must have at least one");
  EXPECT_EQ(read_trace("/no/such/trace", 1).status().message(), "/no/such/trace: this trace cannot be read");
}

}  // namespace
}  // namespace prologue::bench
