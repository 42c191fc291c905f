// The program `generate` as people use it: flags, JSON, exit codes, messages.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <chrono>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include <prologue/kernels/base/status.h>

#include "tests/support/gguf_writer.h"
#include "tests/support/terminal.h"

namespace prologue::test {
namespace {

struct Outcome {
  int exit_code = -1;
  std::string out;
  std::string err;
};

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream content;
  content << file.rdbuf();
  return content.str();
}

// A file of its own for each test: they run in parallel.
std::string temp(const std::string& name) {
  const testing::TestInfo& info = *testing::UnitTest::GetInstance()->current_test_info();
  std::string test = std::string(info.test_suite_name()) + "_" + info.name();
  std::replace(test.begin(), test.end(), '/', '_');
  return testing::TempDir() + "prologue_generate_test_" + test + "_" + name;
}

// `arguments` are shell words; `input` comes from a file.
Outcome generate(const std::string& arguments, const std::string& input = "") {
  const std::string in = temp("in"), out = temp("out"), err = temp("err");
  std::ofstream(in, std::ios::binary) << input;
  const int status = std::system((PROLOGUE_GENERATE " " + arguments + " <" + in + " >" + out + " 2>" + err).c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_file(out), read_file(err)};
}

const std::string& model() {
  static const std::string path = [] {
    const std::string name = temp("model.gguf");
    EXPECT_TRUE(write_tiny_llama(name));
    return name;
  }();
  return path;
}

Outcome generate_with_model(const std::string& arguments, const std::string& input = "") {
  return generate("--device cpu --model " + model() + " " + arguments, input);
}

testing::AssertionResult contains(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return testing::AssertionSuccess();
  return testing::AssertionFailure() << part << " is not in\n" << text;
}

// What a terminal may be shown of text that a model or a file made up: control characters as \xNN, except newline and tab.
std::string without_controls(const std::string& text) {
  std::string shown;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const bool is_c1 = byte == 0xc2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xa0;
    const bool is_control = byte == 0x7f || (byte < 0x20 && byte != '\n' && byte != '\t');
    const size_t length = is_c1 ? 2 : 1;
    for (size_t b = i; b < i + length; ++b) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\x%02x", static_cast<unsigned char>(text[b]));
      shown += is_c1 || is_control ? std::string(escape) : std::string(1, text[b]);
    }
    i += length - 1;
  }
  return shown;
}

// cuBLASLt takes 0.08 s to load: it is opened when a GPU multiplies.
TEST(Generate, LinksNoCublasLt) {
  const std::string out = temp("out");
  ASSERT_EQ(std::system(("LD_TRACE_LOADED_OBJECTS=1 " PROLOGUE_GENERATE " >" + out).c_str()), 0);
  const std::string libraries = read_file(out);
  EXPECT_NE(libraries.find("libstdc++"), std::string::npos) << libraries;
  EXPECT_EQ(libraries.find("cublas"), std::string::npos) << libraries;
}

TEST(Generate, QuietPrintsTheTextAlone) {
  const Outcome run = generate_with_model("--prompt hello --max-tokens 5 --ignore-eos --quiet");
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.err, "");
  EXPECT_FALSE(run.out.empty());
}

TEST(Generate, EndsWithATable) {
  const Outcome run = generate_with_model("--prompt hello --max-tokens 5 --ignore-eos");
  EXPECT_EQ(run.exit_code, 0);
  EXPECT_EQ(run.out.rfind("hello", 0), 0u);
  for (const char* row : {"model  ", "device, dtype        cpu, float32, weights as float32, 0.3 MB\n", "prompt tokens        ",
                          "generated tokens     5", "time to first token  ", "prefill              ", "decoding             ",
                          "finish reason        length\n"}) {
    EXPECT_NE(run.err.find(row), std::string::npos) << row << "\n" << run.err;
  }
}

TEST(Generate, KeepsQuantizedWeightsIfAsked) {
  TinyLlamaOptions quantized;
  quantized.type_of = [](const std::string&) { return test::gguf::kQ8_0; };
  const std::string path = temp("quantized.gguf");
  ASSERT_TRUE(write_tiny_llama(path, quantized));
  const std::string arguments = "--device cpu --model " + path + " --prompt hello --max-tokens 2 --ignore-eos";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "q8_0"}, {" --dtype float32", "float32"}, {" --dtype float32 --keep-quantized", "q8_0"}};
  for (const auto& [flags, weights] : cases) {
    const Outcome run = generate(arguments + flags);
    EXPECT_EQ(run.exit_code, 0) << run.err;
    EXPECT_TRUE(contains(run.err, "device, dtype        cpu, float32, weights as " + weights + ", ")) << flags;
  }
}

TEST(Generate, JsonIsOneObjectPerPromptInOrder) {
  const Outcome run = generate_with_model("--prompt hello --prompt '' --prompt 'good bye' --max-tokens 5 --ignore-eos --json");
  EXPECT_EQ(run.exit_code, 1) << run.err;
  std::istringstream lines(run.out);
  std::vector<nlohmann::json> objects;
  for (std::string line; std::getline(lines, line);) objects.push_back(nlohmann::json::parse(line));
  ASSERT_EQ(objects.size(), 3u);
  EXPECT_EQ(objects[0]["prompt"], "hello");
  EXPECT_EQ(objects[0]["tokens"].size(), 5u);
  EXPECT_EQ(objects[0]["finish_reason"], "length");
  EXPECT_EQ(objects[0]["device"], "cpu");
  EXPECT_EQ(objects[0]["dtype"], "float32");
  EXPECT_GT(objects[0]["weight_bytes"], 0);
  for (const char* key : {"load_s", "prompt_tokens", "cached_tokens", "queue_s", "prefill_s", "decode_tokens", "decode_s",
                          "draft_tokens", "accepted_tokens"}) {
    EXPECT_TRUE(objects[0]["timings"].contains(key)) << key;
  }
  EXPECT_EQ(objects[1],
            nlohmann::json::parse(R"({"prompt": "", "error": "the prompt is empty: it must have at least one token"})"));
  EXPECT_EQ(objects[2]["prompt"], "good bye");
  EXPECT_EQ(objects[2]["text"].get<std::string>().empty(), false);
}

TEST(Generate, DraftsChangeNoText) {
  const std::string request = "--prompt 'hello hello hello' --max-tokens 60 --ignore-eos --batch-invariant";
  const Outcome without = generate_with_model(request);
  EXPECT_EQ(without.exit_code, 0) << without.err;
  for (const std::string& flags : {std::string("--speculate ngram --max-drafts 5"), "--draft " + model()}) {
    const Outcome with = generate_with_model(request + " " + flags);
    EXPECT_EQ(with.exit_code, 0) << with.err;
    EXPECT_EQ(with.out, without.out) << flags;
  }
  const Outcome both = generate_with_model(request + " --speculate ngram --draft " + model());
  EXPECT_EQ(both.exit_code, 2);
  EXPECT_NE(both.err.find("--speculate is ngram, and there is a --draft: only one of them can guess"), std::string::npos)
      << both.err;
  EXPECT_NE(generate_with_model(request + " --max-drafts 16").exit_code, 0);
  EXPECT_NE(generate_with_model(request + " --draft nowhere.gguf").exit_code, 0);
}

TEST(Generate, ChatUsesTheModelsFormat) {
  const Outcome raw = generate_with_model("--prompt hello --max-tokens 1 --json");
  const Outcome chat = generate_with_model("--chat --prompt hello --max-tokens 1 --json");
  EXPECT_EQ(chat.exit_code, 0) << chat.err;
  EXPECT_GT(nlohmann::json::parse(chat.out)["prompt_tokens"].size(), nlohmann::json::parse(raw.out)["prompt_tokens"].size());
}

TEST(Generate, PromptFile) {
  const std::string path = temp("prompt.txt");
  std::ofstream(path) << "hello";
  const Outcome from_file = generate_with_model("--prompt-file " + path + " --max-tokens 4 --quiet");
  const Outcome direct = generate_with_model("--prompt hello --max-tokens 4 --quiet");
  EXPECT_EQ(from_file.exit_code, 0) << from_file.err;
  EXPECT_EQ(from_file.out, direct.out);
}

TEST(Generate, ScorePrintsARowForEachRow) {
  const std::string path = temp("rows.json");
  std::ofstream(path) << R"([{"prompt_tokens": [5, 6], "tokens": [7, 8, 9]}, {"prompt_tokens": [5], "tokens": [1]}])";
  const Outcome run = generate_with_model("--score " + path);
  EXPECT_EQ(run.exit_code, 0) << run.err;
  std::istringstream lines(run.out);
  std::string line;
  ASSERT_TRUE(std::getline(lines, line));
  const nlohmann::json first = nlohmann::json::parse(line);
  for (const char* key : {"argmax", "logit_of_argmax", "logit_of_token", "logprob_of_token"})
    EXPECT_EQ(first[key].size(), 3u) << key;
  EXPECT_GT(first["perplexity"].get<double>(), 1.0);
  ASSERT_TRUE(std::getline(lines, line));
}

// A megabyte of small objects is read in a moment: a time that grows with the square of their number would be a minute.
TEST(Generate, FilesOfManyObjectsAreReadInLinearTime) {
  std::string objects = R"({"a":0})";
  for (int i = 0; i < 150000; ++i) objects += R"(,{"a":0})";
  std::string names = R"("a":0)";
  for (int i = 0; i < 100000; ++i) names += ",\"" + std::to_string(i) + "\":0";
  const std::string path = temp("objects.json");
  for (const std::string& content : {"[" + objects + "]", R"([{)" + names + "}]"}) {
    std::ofstream(path) << content;
    const auto start = std::chrono::steady_clock::now();
    EXPECT_NE(generate_with_model("--score " + path).err.find("row 0 has no list"), std::string::npos);
    std::ofstream(path) << R"({"prompt": [)" << content << "]}";
    EXPECT_NE(generate_with_model("--prompts " + path).err.find("line 1 must be a JSON string"), std::string::npos);
    EXPECT_LT(std::chrono::steady_clock::now() - start,
              std::chrono::seconds(60));  // linear: 12 under sanitizers on a busy machine
  }
}

// One type for K and V, or one for each; fused and unfused graphs give the same scores.
TEST(Generate, TypesOfTheCache) {
  const std::string path = temp("cache_rows.json");
  std::ofstream(path) << R"([{"prompt_tokens": [5, 6], "tokens": [7, 8, 9]}])";
  const auto score = [&](const std::string& types) {
    const Outcome run = generate_with_model("--score " + path + " --kv-cache-dtype " + types);
    EXPECT_EQ(run.exit_code, 0) << run.err;
    EXPECT_EQ(generate_with_model("--unfused --score " + path + " --kv-cache-dtype " + types).out, run.out) << types;
    return run.out;
  };
  EXPECT_EQ(score("int8"), score("int8,int8"));
  EXPECT_NE(score("int8,uint4"), score("int8"));
  EXPECT_NE(score("int8,uint4"), score("uint4"));
  EXPECT_NE(score("int8,uint4"), score("uint4,int8"));
  EXPECT_NE(score("uint4"), score("int4"));
  const auto named = [&](const std::string& types) {
    const Outcome run = generate_with_model("--prompt hello --max-tokens 2 --json --kv-cache-dtype " + types);
    return nlohmann::json::parse(run.out)["kv_cache_dtype"].get<std::string>();
  };
  EXPECT_EQ(named("auto"), "float32");
  EXPECT_EQ(named("int8,int8"), "int8");
  EXPECT_EQ(named("int8,uint4"), "int8,uint4");
}

// A float cache hardly notices it, one of 4 bits does; fused and unfused graphs give the same scores.
TEST(Generate, HadamardBlock) {
  const std::string path = temp("hadamard_rows.json");
  std::ofstream(path) << R"([{"prompt_tokens": [5, 6], "tokens": [7, 8, 9]}])";
  const auto score = [&](const std::string& options) {
    const Outcome run = generate_with_model("--score " + path + options);
    EXPECT_EQ(run.exit_code, 0) << run.err;
    EXPECT_EQ(generate_with_model("--unfused --score " + path + options).out, run.out) << options;
    return run.out;
  };
  const auto perplexity = [](const std::string& text) { return nlohmann::json::parse(text)["perplexity"].get<double>(); };
  const std::string plain = score("");
  EXPECT_EQ(score(" --hadamard-block 0"), plain);
  const std::string transformed = score(" --hadamard-block 4");
  EXPECT_NE(transformed, plain);
  EXPECT_NEAR(perplexity(transformed), perplexity(plain), 1e-4 * perplexity(plain));
  const std::string of_v = score(" --v-hadamard-block 4");
  EXPECT_NE(of_v, plain);
  EXPECT_NEAR(perplexity(of_v), perplexity(plain), 1e-4 * perplexity(plain));
  EXPECT_NE(score(" --kv-cache-dtype uint4 --v-hadamard-block 4"), score(" --kv-cache-dtype uint4"));
  EXPECT_NE(score(" --kv-cache-dtype uint4 --hadamard-block 4"), score(" --kv-cache-dtype uint4"));
  EXPECT_NE(score(" --kv-cache-dtype uint4 --hadamard-block 4"), score(" --kv-cache-dtype uint4 --hadamard-block 2"));
  EXPECT_NE(
      generate_with_model("--print-graph --hadamard-block 4").out.find("rope_q + rope_k + hadamard_q + hadamard_k + kv_write"),
      std::string::npos);
}

TEST(Generate, PrintsTheGraphFusedOrNot) {
  const Outcome fused = generate_with_model("--print-graph");
  const Outcome unfused = generate_with_model("--print-graph=full --unfused");
  const Outcome dot = generate_with_model("--print-graph=dot");
  EXPECT_EQ(fused.exit_code, 0) << fused.err;
  EXPECT_NE(fused.out.find("layers.0-1.attention.prologue "), std::string::npos) << fused.out;
  EXPECT_EQ(generate_with_model("--print-graph=table").out, fused.out);
  EXPECT_EQ(unfused.out.find("attention_prologue"), std::string::npos);
  EXPECT_NE(unfused.out.find("layers.0.attention.rope_q"), std::string::npos);
  EXPECT_EQ(dot.out.rfind("digraph", 0), 0u);
  EXPECT_EQ(fused.out.find("rounds per step"), std::string::npos);
  EXPECT_NE(generate_with_model("--print-graph --rounding per_step").out.find("rounds per step"), std::string::npos);
}

TEST(Generate, ProfileNamesTheNodes) {
  const Outcome run = generate_with_model("--prompt hello --max-tokens 3 --ignore-eos --profile");
  EXPECT_EQ(run.exit_code, 0);
  for (const char* text : {"prompt steps", "decoding steps", "attention.prologue", "mlp.down", "lm_head"}) {
    EXPECT_NE(run.err.find(text), std::string::npos) << text;
  }
}

TEST(Generate, VersionAndHelp) {
  EXPECT_EQ(generate("--version").exit_code, 0);
  const Outcome help = generate("--help");
  EXPECT_EQ(help.exit_code, 0);
  for (const char* flag : {"--model",          "--prompt",         "--prompt-file",
                           "--chat",           "--max-tokens",     "--temperature",
                           "--top-k",          "--top-p",          "--min-p",
                           "--seed",           "--stop",           "--ignore-eos",
                           "--device",         "--dtype",          "--page-size",
                           "--context",        "--threads",        "--system",
                           "--unfused",        "--print-graph",    "--profile",
                           "--score",          "--json",           "--quiet",
                           "--hadamard-block", "--chat-template",  "--chat-template-kwargs",
                           "--chat-date",      "--keep-quantized", "--activations"}) {
    EXPECT_NE(help.out.find(flag), std::string::npos) << flag;
  }
}

// Bad input: exit code, nothing on stdout, one sentence on stderr.
struct BadCase {
  const char* arguments;  // MODEL stands for the tiny model
  int exit_code;
  const char* message;
};
void PrintTo(const BadCase& bad, std::ostream* out) { *out << bad.arguments; }

class GenerateBadInput : public testing::TestWithParam<BadCase> {};

TEST_P(GenerateBadInput, OneClearSentence) {
  std::string arguments = GetParam().arguments;
  for (size_t at; (at = arguments.find("MODEL")) != std::string::npos;) arguments.replace(at, 5, model());
  for (size_t at; (at = arguments.find("EMPTY")) != std::string::npos;) {
    std::ofstream(temp("empty"));
    arguments.replace(at, 5, temp("empty"));
  }
  const Outcome run = generate(arguments);
  EXPECT_EQ(run.exit_code, GetParam().exit_code) << run.err;
  EXPECT_EQ(run.out, "");
  EXPECT_EQ(std::count(run.err.begin(), run.err.end(), '\n'), 1) << run.err;
  EXPECT_EQ(run.err.rfind("generate: ", 0), 0u) << run.err;
  EXPECT_NE(run.err.find(GetParam().message), std::string::npos) << run.err;
}

INSTANTIATE_TEST_SUITE_P(
    Cases, GenerateBadInput,
    testing::Values(
        BadCase{"", 2, "--model is required"}, BadCase{"--model MODEL", 2, "there is nothing to do"},
        BadCase{"--model MODEL --prompt x --no-such-flag", 2, "--no-such-flag"},
        BadCase{"--model MODEL --prompt x --max-tokens 0", 2,
                "--max-tokens is '0': it must be a whole number between 1 and 2147483647"},
        BadCase{"--model MODEL --prompt x --max-tokens many", 2, "many"},
        BadCase{"--model MODEL --prompt x --temperature -1", 2,
                "--temperature is '-1': it must be a number between 0 and 100 (0 = greedy)"},
        BadCase{"--model MODEL --prompt x --top-p 2", 2, "--top-p is '2': it must be a number above 0 and at most 1 (1 = off)"},
        BadCase{"--model MODEL --prompt x --page-size 0", 2, "--page-size is '0': it must be a whole number between 1 and 1024"},
        BadCase{"--model MODEL --prompt x --device tpu", 2, "tpu"}, BadCase{"--model MODEL --prompt x --dtype int3", 2, "int3"},
        BadCase{"--model MODEL --prompt x --kv-cache-dtype int3", 2,
                "--kv-cache-dtype is 'int3': it must be auto, a type, or the types of K and V with a comma between them; "
                "supported are "
                "float32, float16, bfloat16, fp8_e4m3, fp8_e5m2, int8, int4, uint4, mxfp8, mxfp4 and nvfp4"},
        BadCase{"--model MODEL --prompt x --kv-cache-dtype int8,", 2, "--kv-cache-dtype is 'int8,'"},
        BadCase{"--model MODEL --prompt x --kv-cache-dtype ,int8", 2, "--kv-cache-dtype is ',int8'"},
        BadCase{"--model MODEL --prompt x --kv-cache-dtype int8,int8,int8", 2, "--kv-cache-dtype is 'int8,int8,int8'"},
        BadCase{"--model MODEL --prompt x --kv-cache-dtype auto,int8", 2, "--kv-cache-dtype is 'auto,int8'"},
        BadCase{"--model MODEL --prompt x --kv-cache-dtype float64", 2, "--kv-cache-dtype is 'float64'"},
        BadCase{"--model MODEL --prompt x --hadamard-block 3", 1,
                "the Hadamard block is 3: it must be a power of two in 2..512 that divides head_dim, "},
        BadCase{"--model MODEL --prompt x --hadamard-block 512", 1, "the Hadamard block is 512: it must be a power of two"},
        BadCase{"--model MODEL --prompt x --v-hadamard-block 3", 1, "the Hadamard block of V is 3: it must be a power of two"},
        BadCase{"--model MODEL --prompt x --prompt-file y", 2, "exclude each other"},
        BadCase{"--model MODEL --prompt-file /nowhere", 1, "--prompt-file /nowhere: there is no such file"},
        BadCase{"--model MODEL --score /nowhere", 1, "--score /nowhere: there is no such file"},
        BadCase{"--model MODEL --score EMPTY", 1, "must be a JSON list"},
        BadCase{"--model /nowhere.gguf --prompt x", 1, "/nowhere.gguf"}, BadCase{"--model EMPTY --prompt x", 1, "empty"},
        BadCase{"--model /tmp --prompt x", 1, "/tmp"}, BadCase{"--model " PROLOGUE_GENERATE " --prompt x", 1, "GGUF"},
        BadCase{"--device cpu --model MODEL --prompt ''", 1, "the prompt is empty"}));

INSTANTIATE_TEST_SUITE_P(
    Files, GenerateBadInput,
    testing::Values(BadCase{"--model MODEL --prompt-file /tmp", 1,
                            "--prompt-file /tmp: this is a directory, but a file is expected"},
                    BadCase{"--model MODEL --score /tmp", 1, "--score /tmp: this is a directory, but a file is expected"},
                    BadCase{"--model MODEL --prompt-file /dev/zero", 1, "the file is too large: at most 67108864 bytes are read"},
                    BadCase{"--model MODEL --score /dev/zero", 1, "the file is too large: at most 67108864 bytes are read"},
                    BadCase{"--model MODEL --prompt-file /proc/self/mem", 1, "the file cannot be read: "},
                    BadCase{"--model MODEL --prompt-file /nowhere/\x1b[2J", 1, "/nowhere/\\x1b[2J: there is no such file"},
                    BadCase{"--model MODEL --prompt x --no-such\x1b[2J", 2, "--no-such\\x1b[2J"}));

INSTANTIATE_TEST_SUITE_P(
    Rules, GenerateBadInput,
    testing::Values(
        BadCase{"--model MODEL --prompt x --system y", 2, "--system needs --chat"},
        BadCase{"--model MODEL --chat --prompt x --chat-date 2026-02-30", 2, "--chat-date is '2026-02-30': it must be a date"},
        BadCase{"--model MODEL --chat --prompt x --chat-template-kwargs [1]", 2, "it must be a JSON object"},
        BadCase{"--model MODEL --chat --prompt x --chat-template /nowhere.jinja", 1, "/nowhere.jinja: there is no such file"},
        BadCase{"--model MODEL --chat --json", 2, "--json needs --prompt, --prompt-file or --prompts"},
        BadCase{"--model MODEL --prompt x --stop ''", 2, "--stop is empty"},
        BadCase{"--model MODEL --prompt x --seed 1 --seed 2", 2, "--seed"},
        BadCase{"--model MODEL --prompt x --print-graph=png", 2, "png"}));

// No numeric option takes anything but a decimal number in its range. How a number is read depends on its type alone: the first option of
// each type has every text that is no number, the others two of them.
TEST(Generate, NumbersAreDecimalAndInRange) {
  const std::string not_numbers[] = {"''", "' 1'", "'1 '", "+1", "0x1", "1x", "1e", "nan", "inf", "1_0", "1,5", "-1"};
  const struct {
    const char* name;
    bool first_of_its_type;
    std::vector<std::string> values;
  } options[] = {
      {"--max-tokens", true, {"0", "1e9", "1.5", "2147483648", "99999999999999999999"}},
      {"--page-size", false, {"0", "1025", "16.0", "0x1", "-1"}},
      {"--hadamard-block", false, {"513", "16.0", "0x1", "-1"}},
      {"--v-hadamard-block", false, {"513", "16.0", "0x1", "-1"}},
      {"--context", false, {"1.5", "9223372036854775808", "0x1", "-1"}},
      {"--seed", true, {"1.0", "18446744073709551616"}},
      {"--top-k", true, {"1.5", "2147483648"}},
      {"--threads", false, {"1.5", "4294967297", "99999", "0x1", "-1"}},
      {"--temperature", true, {"101", "1e39", "0x1p1"}},
      {"--top-p", false, {"0", "1.001", "0x1", "-1"}},
      {"--min-p", false, {"1.001", "0x1", "-1"}},
  };
  for (const auto& [option, first_of_its_type, values] : options) {
    std::vector<std::string> all = values;
    if (first_of_its_type) all.insert(all.end(), std::begin(not_numbers), std::end(not_numbers));
    for (const std::string& value : all) {
      const Outcome run = generate("--model /nowhere --prompt x " + std::string(option) + " " + value);
      EXPECT_EQ(run.exit_code, 2) << option << " " << value << ": " << run.err;
      EXPECT_EQ(run.out, "");
      const std::string shown = value[0] == '\'' ? value : "'" + value + "'";
      EXPECT_TRUE(contains(run.err, "generate: " + std::string(option) + " is " + shown + ": it must be a "));
    }
  }
  const char* good[] = {"--max-tokens 2147483647",
                        "--seed 18446744073709551615",
                        "--seed 0",
                        "--seed 010",
                        "--temperature 1e-3",
                        "--temperature 0.5",
                        "--top-p 1",
                        "--min-p 0",
                        "--context 0",
                        "--threads 64",
                        "--context 9223372036854775807"};
  for (const char* option : good) {
    EXPECT_TRUE(contains(generate(std::string("--model /nowhere --prompt x ") + option).err, "/nowhere: there is no such file"));
  }
}

TEST(Generate, TheContextIsALimitInTokens) {
  const auto run = [](const std::string& options) {
    const Outcome outcome = generate_with_model("--prompt 12 --ignore-eos --json " + options);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
    return nlohmann::json::parse(outcome.out);
  };
  const nlohmann::json five = run("--context 5"), three = run("--max-tokens 3");
  const nlohmann::json huge = run("--context 9223372036854775807 --max-tokens 3");
  EXPECT_EQ(five["prompt_tokens"].size(), 2u);
  EXPECT_EQ(five["tokens"], three["tokens"]);
  EXPECT_EQ(huge["tokens"], three["tokens"]);
  EXPECT_EQ(five["finish_reason"], "context");
  EXPECT_EQ(three["finish_reason"], "length");
  EXPECT_EQ(huge["finish_reason"], "length");
  EXPECT_TRUE(contains(generate_with_model("--prompt 12 --ignore-eos --context 5").err, "finish reason        context\n"));
  EXPECT_TRUE(contains(generate_with_model("--prompt 12 --prompt 34 --ignore-eos").err, "finish reason        2 length\n"));
}

// A context that cannot be is not taken without a word.
TEST(Generate, ALargerContextThanCanBeSaysWhatItBecame) {
  const std::string hello = "--prompt hello --max-tokens 1 --json --context ";
  EXPECT_EQ(generate_with_model(hello + "9223372036854775807").err,
            "generate: --context is 9223372036854775807: it became 512, the most that the model supports\n");
  EXPECT_EQ(generate_with_model(hello + "513").err,
            "generate: --context is 513: it became 512, the most that the model supports\n");
  EXPECT_EQ(generate_with_model(hello + "512").err, "");
  EXPECT_EQ(generate_with_model(hello + "0").err, "");
  EXPECT_EQ(generate_with_model(hello + "512 --kv-memory 16K --parallel 1").err,
            "generate: --context is 512: it became 32, for which the memory of the KV cache is enough (--kv-memory)\n");
  EXPECT_EQ(generate_with_model("--chat", "/exit\n").err, "");  // of an interactive chat it is 8192 without a flag
}

// The values of the model's files go before the program's defaults, and options go before both.
TEST(Generate, SamplesAsTheModelRecommends) {
  const std::string path = temp("sampling.gguf");
  TinyLlamaOptions options;
  options.extra = [](GgufWriter& writer) {
    writer.add("general.sampling.temp", 40.0f);
    writer.add("general.sampling.top_k", int32_t{200});
    writer.add("general.sampling.mirostat", int32_t{2});
  };
  ASSERT_TRUE(write_tiny_llama(path, options));
  const std::string hello = " --prompt hello --max-tokens 8 --ignore-eos --seed 3 --quiet ";
  const auto recommended = [&](const std::string& more) { return generate("--device cpu --model " + path + hello + more).out; };
  const std::string sampled = generate_with_model(hello + "--temperature 40 --top-k 200").out;
  ASSERT_NE(sampled, generate_with_model(hello).out);
  EXPECT_EQ(recommended(""), sampled);
  EXPECT_EQ(recommended("--temperature 0"), generate_with_model(hello).out);
  EXPECT_EQ(recommended("--top-k 1"), generate_with_model(hello + "--temperature 40 --top-k 1").out);
  EXPECT_EQ(recommended("--chat"), generate_with_model(hello + "--chat --temperature 40 --top-k 200").out);
  EXPECT_TRUE(contains(generate("--device cpu --model " + path + " --prompt a --max-tokens 1").err,
                       path + ": general.sampling.mirostat is not supported: it is not applied\n"));
}

TEST(Generate, PromptsOfAFileAndSeveralCompletions) {
  const std::string file = temp("prompts.jsonl");
  std::ofstream(file) << "\"hello\"\n\n{\"prompt\": \"good bye\", \"id\": 7}\n";
  const Outcome run = generate_with_model("--prompts " + file +
                                          " --n 2 --max-tokens 4 --ignore-eos --json --logprobs 1 --temperature 20 --parallel 3");
  EXPECT_EQ(run.exit_code, 0) << run.err;
  std::istringstream lines(run.out);
  std::vector<nlohmann::json> objects;
  for (std::string line; std::getline(lines, line);) objects.push_back(nlohmann::json::parse(line));
  ASSERT_EQ(objects.size(), 4u);
  EXPECT_EQ(objects[1]["prompt"], "hello");
  EXPECT_EQ(objects[2]["prompt"], "good bye");
  EXPECT_NE(objects[0]["tokens"], objects[1]["tokens"]);  // seeds 0 and 1
  EXPECT_EQ(objects[3]["logprobs"].size(), 4u);
  std::ofstream(file) << "\"hello\"\n[1]\n";
  const Outcome bad = generate_with_model("--prompts " + file);
  EXPECT_EQ(bad.exit_code, 1);
  EXPECT_TRUE(contains(bad.err, "line 2 must be a JSON string, or an object with a string \"prompt\""));
}

TEST(Generate, AnOptionThatDoesNotExistNamesTheOneThatWasMeant) {
  const std::pair<const char*, const char*> cases[] = {
      {"--modle x --prompt y", "there is no option '--modle' (did you mean '--model'?)"},  // before "--model is required"
      {"--model x --prompt y --max-token=4", "there is no option '--max-token' (did you mean '--max-tokens'?)"},
      {"--model x --prompt y --frequency-penalti 1",
       "there is no option '--frequency-penalti' (did you mean '--frequency-penalty'?)"},
      {"--model x --prompt y --zzzzzz", "there is no option '--zzzzzz' (generate --help"}};
  for (const auto& [arguments, message] : cases) {
    const Outcome run = generate(arguments);
    EXPECT_EQ(run.exit_code, 2);
    EXPECT_TRUE(contains(run.err, message));
  }
}

TEST(Generate, OptionsWithoutAValueOrWithSeveral) {
  const std::pair<const char*, const char*> cases[] = {
      {"--model x --prompt y --max-tokens", "generate: --max-tokens needs a value (generate --help"},
      {"--model x --prompt y --temperature 1 --temperature 0", "generate: --temperature is given 2 times: it takes one value"},
      {"--model '' --prompt y", "generate: --model is empty: it must have a value, or be left out"},
      {"--model x --prompt y --prompts ''", "generate: --prompts is empty"},
      {"--model x --prompt y --chat --chat-template ''", "generate: --chat-template is empty"},
      {"--model x --prompt y --chat --chat-template-kwargs ''", "generate: --chat-template-kwargs is empty"},
      {"--model x --prompt y --chat --chat-date ''", "generate: --chat-date is empty"},
      {"--model x --prompt y --chat --chat-date 2026-02-31", "generate: --chat-date is '2026-02-31': it must be a date"},
      {"--model x --prompt y --chat --chat-date 2027-02-29", "generate: --chat-date is '2027-02-29': it must be a date"}};
  for (const auto& [arguments, message] : cases) {
    const Outcome run = generate(arguments);
    EXPECT_EQ(run.exit_code, 2) << arguments;
    EXPECT_TRUE(contains(run.err, message));
  }
}

TEST(Generate, PipesAreReadLikeFiles) {
  const std::string pipe = temp("pipe");
  std::filesystem::remove(pipe);
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  ASSERT_EQ(std::system(("printf hello >" + pipe + " &").c_str()), 0);
  const Outcome from_pipe = generate_with_model("--max-tokens 4 --quiet --prompt-file " + pipe);
  EXPECT_EQ(from_pipe.exit_code, 0) << from_pipe.err;
  EXPECT_EQ(from_pipe.out, generate_with_model("--prompt hello --max-tokens 4 --quiet").out);
}

TEST(Generate, ScoreFilesThatAreNotWhatTheyMustBe) {
  const std::pair<std::string, std::string> cases[] = {
      {"{}", "must be a JSON list of objects"},
      {"[1]", "row 0 has no list \"prompt_tokens\""},
      {R"([{"prompt_tokens": [1]}])", "row 0 has no list \"tokens\""},
      {R"([{"prompt_tokens": [-1], "tokens": [1]}])", "-1 in \"prompt_tokens\" is not a token id"},
      {R"([{"prompt_tokens": [1.5], "tokens": [1]}])", "1.5 in \"prompt_tokens\" is not a token id"},
      {R"([{"prompt_tokens": [4294967297], "tokens": [1]}])", "4294967297 in \"prompt_tokens\" is not a token id"},
      {R"([{"prompt_tokens": [18446744073709551615], "tokens": [1]}])", "is not a token id"},
      {R"([{"prompt_tokens": [[1]], "tokens": [1]}])", "nested more than 3 deep"},
      {R"([{"prompt_tokens": [{"a": 1}], "tokens": [1]}])", "nested more than 3 deep"},
      {std::string(1000000, '['), "nested more than 3 deep"},
      {"[{\"prompt_tokens\": [\"\xc2\x9b" + std::string(100000, 'x') + "\"], \"tokens\": [1]}]",
       "... (100004 bytes) in \"prompt_"},
      {"[{\"\xff\": 1}]", "must be a JSON list of objects"},
  };
  const std::string path = temp("rows.json");
  for (const auto& [content, message] : cases) {
    std::ofstream(path, std::ios::binary) << content;
    const Outcome run = generate_with_model("--score " + path);
    EXPECT_EQ(run.exit_code, 1);
    EXPECT_EQ(run.out, "");
    EXPECT_TRUE(contains(run.err, "generate: --score " + path + ": "));
    EXPECT_TRUE(contains(run.err, message));
    EXPECT_EQ(run.err, without_controls(run.err));
    EXPECT_LT(run.err.size(), 1000u);
  }
}

// ---- Standard output that cannot be written ----

TEST(Generate, AFullDiskIsAnError) {
  const std::string rows = temp("rows.json");
  std::ofstream(rows) << R"([{"prompt_tokens": [5, 6], "tokens": [7, 8, 9]}])";
  const std::string with_model = PROLOGUE_GENERATE " --device cpu --model " + model() + " ";
  const std::string commands[] = {with_model + "--prompt x --max-tokens 3",
                                  with_model + "--prompt x --max-tokens 3 --json",
                                  with_model + "--prompt x --prompt y --max-tokens 3 --quiet",
                                  with_model + "--print-graph",
                                  with_model + "--score " + rows,
                                  PROLOGUE_GENERATE " --help",
                                  PROLOGUE_GENERATE " --version",
                                  "echo x | " + with_model + "--chat --max-tokens 3"};
  for (const std::string& command : commands) {
    const int status = std::system((command + " >/dev/full 2>" + temp("err")).c_str());
    EXPECT_EQ(WEXITSTATUS(status), 1) << command;
    EXPECT_EQ(read_file(temp("err")), "generate: standard output cannot be written: No space left on device\n") << command;
  }
  const int closed = std::system((commands[0] + " >&- 2>" + temp("err")).c_str());
  EXPECT_EQ(WEXITSTATUS(closed), 1);
  EXPECT_EQ(read_file(temp("err")), "generate: standard output cannot be written: Bad file descriptor\n");
}

// As with other Unix programs: SIGPIPE ends it silently; where the parent ignores that signal, it is an error.
TEST(Generate, APipeWithoutAReader) {
  const std::string command =
      PROLOGUE_GENERATE " --device cpu --model " + model() + " --prompt x --max-tokens 3 2>" + temp("err");
  FILE* pipe = popen(("exec " + command).c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  const int status = pclose(pipe);  // closes its end long before the model is loaded
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGPIPE) << status;
  EXPECT_EQ(read_file(temp("err")), "");

  const std::string code = temp("code");
  const std::string wait_for_the_reader_to_go = "while printf x; do :; done 2>/dev/null; ";
  const std::string line = "trap '' PIPE; { " + wait_for_the_reader_to_go + command + "; echo $? >" + code + "; } | true";
  ASSERT_EQ(std::system(line.c_str()), 0);
  EXPECT_EQ(read_file(code), "1\n");
  EXPECT_EQ(read_file(temp("err")), "generate: standard output cannot be written: Broken pipe\n");
}

// ---- At a terminal ----

std::vector<std::string> command_line(const std::string& arguments) {
  std::istringstream stream(PROLOGUE_GENERATE " --device cpu --threads 1 " + arguments);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

TEST(GenerateTerminal, TheProgressBarIsGoneBeforeTheAnswer) {
  const std::string options = "--model " + model() + " --prompt hello --max-tokens 12 --ignore-eos";
  Terminal terminal(command_line(options));
  EXPECT_EQ(terminal.wait(), 0);
  const std::string text = nlohmann::json::parse(generate("--device cpu " + options + " --json").out)["text"];
  ASSERT_TRUE(contains(terminal.bytes(), "[========================================] 100 %"));
  const std::string shown = screen(terminal.bytes());
  EXPECT_EQ(shown.substr(0, shown.find("\n\nmodel  ")), "hello" + without_controls(text)) << terminal.bytes();
  EXPECT_EQ(shown.find("==="), std::string::npos) << shown;
}

// Escape sequences that a model generates, or that a prompt or a model file holds, do nothing to a terminal. Elsewhere the generated
// bytes stay as they are.
TEST(GenerateTerminal, ControlCharactersAreShownNotObeyed) {
  TinyLlamaOptions tiny;
  tiny.name = "evil\033]0;title\007\r\nname\x7f\xc2\x9b";
  tiny.name += "2J" + std::string(100000, 'x');
  const std::string path = temp("evil.gguf"), prompt = temp("prompt");
  ASSERT_TRUE(write_tiny_llama(path, tiny));
  std::ofstream(prompt, std::ios::binary) << "\033[2Jred\007";
  const std::string options =
      "--model " + path + " --prompt-file " + prompt + " --max-tokens 300 --ignore-eos --temperature 50 --seed 5";
  const std::string text = nlohmann::json::parse(generate("--device cpu " + options + " --json").out)["text"];
  ASSERT_TRUE(contains(text, "\033"));

  Terminal terminal(command_line(options));
  EXPECT_EQ(terminal.wait(), 0);
  const std::string shown = screen(terminal.bytes());
  EXPECT_TRUE(contains(shown, "\\x1b[2Jred\\x07" + without_controls(text)));
  EXPECT_EQ(shown, without_controls(shown));
  EXPECT_TRUE(contains(shown, "model                evil\\x1b]0;title\\x07\\x0d\\x0aname\\x7f\\xc2\\x9b2Jxxx"));
  EXPECT_TRUE(contains(shown, str_cat("... (", tiny.name.size(), " bytes) (llama)\n")));

  const Outcome piped = generate("--device cpu " + options);
  EXPECT_EQ(piped.out, "\033[2Jred\007" + text + "\n");
  EXPECT_EQ(piped.err, without_controls(piped.err));
  EXPECT_LT(piped.err.size(), 1000u);
}

// A chat whose answers only Ctrl-C ends.
std::string endless_chat() {
  TinyLlamaOptions tiny;
  tiny.context_length = 200000;
  const std::string path = temp("endless.gguf");
  EXPECT_TRUE(write_tiny_llama(path, tiny));
  return "--model " + path + " --chat --ignore-eos --context 200000 --max-tokens 200000 --seed 3";
}

// A chat at a terminal of some type. "dumb" has no line editor.
class GenerateChatTerminal : public testing::TestWithParam<const char*> {
 protected:
  GenerateChatTerminal() { set_terminal_type(GetParam()); }
  static void set_terminal_type(const char* type) { setenv("TERM", type, 1); }
};

INSTANTIATE_TEST_SUITE_P(, GenerateChatTerminal, testing::Values("dumb", "xterm", "nonsense"),
                         [](const testing::TestParamInfo<const char*>& type) { return std::string(type.param); });

TEST_P(GenerateChatTerminal, CtrlCStopsTheAnswerAndKeepsTheChat) {
  Terminal terminal(command_line(endless_chat()));
  const std::string welcome =
      "[tiny random llama on cpu, float32, weights as float32, 0.3 MB. /help lists the commands, /exit or Ctrl-D leaves.]\r\n> ";
  ASSERT_TRUE(terminal.wait_for(welcome)) << terminal.bytes();
  for (int turn = 1; turn <= 2; ++turn) {
    terminal.type("hello\n");
    ASSERT_TRUE(terminal.wait_for("100 %\r\033[K")) << terminal.bytes();  // the first text follows
    terminal.type("\x03");
    ASSERT_TRUE(terminal.wait_for("[stopped]\r\n\r\n> ")) << terminal.bytes();
  }
  terminal.type("/stats\n");
  ASSERT_TRUE(terminal.wait_for(" in 2 answers\r\n")) << terminal.bytes();
  ASSERT_TRUE(terminal.wait_for(" (cancelled), ")) << terminal.bytes();
  ASSERT_TRUE(terminal.wait_for("> "));
  terminal.type("half a line");
  terminal.type("\x03");
  ASSERT_TRUE(terminal.wait_for("[Ctrl-C again, Ctrl-D or /exit leaves]\r\n> ")) << terminal.bytes();
  terminal.type("/help\n");
  ASSERT_TRUE(terminal.wait_for("Ctrl-C stops an answer.")) << terminal.bytes();
  ASSERT_TRUE(terminal.wait_for("> "));
  terminal.type("\x03");
  ASSERT_TRUE(terminal.wait_for("leaves]\r\n> ")) << terminal.bytes();
  terminal.type("\x03");
  EXPECT_EQ(terminal.wait(), 0) << terminal.bytes();
}

// Ctrl-C comes at every moment around the prompt, before the program waits for a line as well.
TEST_P(GenerateChatTerminal, NoCtrlCAtThePromptIsMissed) {
  Terminal terminal(command_line(endless_chat()));
  for (int i = 0; i < 200; ++i) {
    ASSERT_TRUE(terminal.wait_for("> ")) << terminal.bytes();
    terminal.type("\x03");
    ASSERT_TRUE(terminal.wait_for("leaves]\r\n> ")) << i << terminal.bytes();
    terminal.type("/clear\n");
    ASSERT_TRUE(terminal.wait_for("forgotten]\r\n")) << terminal.bytes();
  }
}

TEST_P(GenerateChatTerminal, CtrlDLeavesTheChat) {
  Terminal terminal(command_line(endless_chat()));
  ASSERT_TRUE(terminal.wait_for("> "));
  terminal.type("\x04");
  EXPECT_EQ(terminal.wait(), 0) << terminal.bytes();
}

// A chat whose lines are edited, with nothing in its home folder.
class GenerateLineEditor : public testing::Test {
 protected:
  GenerateLineEditor() {
    std::filesystem::remove_all(home_);
    std::filesystem::create_directories(home_);
    setenv("TERM", "xterm", 1);
    setenv("HOME", home_.c_str(), 1);
    setenv("LC_ALL", "C", 1);  // text is UTF-8 all the same
    terminal_ = std::make_unique<Terminal>(command_line(endless_chat()));
    EXPECT_TRUE(terminal_->wait_for("> ")) << terminal_->bytes();
  }
  ~GenerateLineEditor() override {
    terminal_->type("/exit\n");
    EXPECT_EQ(terminal_->wait(), 0) << terminal_->bytes();
    EXPECT_TRUE(std::filesystem::is_empty(home_));  // the history was in memory
    unsetenv("LC_ALL");
  }
  // Types a line, and waits for what it does and for the next prompt.
  testing::AssertionResult enter(const std::string& keys, const std::string& effect) {
    terminal_->type(keys + "\n");
    if (terminal_->wait_for(effect) && terminal_->wait_for("> ")) return testing::AssertionSuccess();
    return testing::AssertionFailure() << effect << " is not in\n" << without_controls(terminal_->bytes());
  }

  const std::string home_ = temp("home");
  std::unique_ptr<Terminal> terminal_;
};

constexpr const char* kUp = "\033[A";
constexpr const char* kLeft = "\033[D";

TEST_F(GenerateLineEditor, KeysEditTheLine) {
  EXPECT_TRUE(
      enter("/clexar\x7f\x7f\x7f"
            "ar",
            "forgotten]\r\n"));                                                      // backspace
  EXPECT_TRUE(enter(std::string("/clar") + kLeft + kLeft + "e", "forgotten]\r\n"));  // insert in the middle
  EXPECT_TRUE(enter("lear\x01/c\x05", "forgotten]\r\n"));                            // to the beginning, to the end
  EXPECT_TRUE(enter("half\x15/clear", "forgotten]\r\n"));                            // away with the line
}

TEST_F(GenerateLineEditor, EarlierLinesComeBack) {
  EXPECT_TRUE(enter("/clear", "forgotten]\r\n"));
  EXPECT_TRUE(enter("/one", "no command '/one'"));
  EXPECT_TRUE(enter(kUp, "no command '/one'"));
  EXPECT_TRUE(enter(std::string(kUp) + "!", "no command '/one!'"));
  EXPECT_TRUE(enter(std::string(kUp) + kUp + kUp, "forgotten]\r\n"));
  EXPECT_TRUE(enter("\x12one!", "no command '/one!'"));  // Ctrl-R searches
  terminal_->type("not sent\x03");
  ASSERT_TRUE(terminal_->wait_for("leaves]\r\n> ")) << terminal_->bytes();
  EXPECT_TRUE(enter(kUp, "no command '/one!'"));
}

TEST_F(GenerateLineEditor, AnyBytesAndAnyLengthArrive) {
  EXPECT_TRUE(
      enter("/\u00fc\u65e5\U0001f600x\x7f", "no command '/\u00fc\u65e5\U0001f600':"));  // backspace takes a whole character
  const std::string bytes =
                        "/\xff\xc3"
                        "a\x16\033\tb",
                    shown =
                        "/\\xff\\xc3"
                        "a\\x1b\\x09b";  // no UTF-8, Escape after Ctrl-V, tab
  EXPECT_TRUE(enter(bytes, "no command '" + shown + "'"));
  EXPECT_TRUE(enter("/" + std::string(20000, 'a'), "(20001 bytes)"));  // a terminal without an editor ends a line after 4095
  terminal_->type("/one\n/two\n");                                     // two lines of one paste
  EXPECT_TRUE(terminal_->wait_for("no command '/one'") && terminal_->wait_for("no command '/two'"));
}

// ---- The chat without a terminal: answers on stdout, everything else on stderr ----

Outcome chat(const std::string& arguments, const std::string& input) {
  const Outcome run = generate_with_model("--chat --ignore-eos --seed 3 " + arguments, input);
  EXPECT_EQ(run.err, without_controls(run.err));
  return run;
}

TEST(GenerateChat, OnlyTheContextCutsAnAnswerAndACutIsSaid) {
  const Outcome full = chat("--context 300", "hello\n/stats\n");
  EXPECT_EQ(full.exit_code, 0) << full.err;
  EXPECT_EQ(full.err.rfind("[cut: the context of 300 tokens is full (--context)]\ncontext      300 of 300 tokens, 1 turn\n", 0),
            0u)
      << full.err;
  EXPECT_TRUE(contains(chat("", "/stats\n").err, "context      0 of 512 tokens, 0 turns\n"));  // all that the model has
  EXPECT_EQ(chat("--max-tokens 4", "hello\n").err, "[cut after 4 tokens: --max-tokens]\n");
  EXPECT_EQ(chat("--max-tokens 4 --quiet", "hello\n").err, "");
}

TEST(GenerateChat, SamplesByDefaultAndExplicitOptionsWin) {
  EXPECT_TRUE(contains(chat("", "/stats\n").err, "sampling     temperature 0.8, top-k 40, top-p 0.95, min-p 0.05, seed 3\n"));
  EXPECT_TRUE(contains(chat("--temperature 0 --top-k 7 --top-p 0.5 --min-p 0", "/stats\n").err,
                       "sampling     temperature 0, top-k 7, top-p 0.5, min-p 0, seed 3\n"));
  std::vector<std::string> seeds;  // without a seed, each chat has another one
  for (int i = 0; i < 3; ++i) seeds.push_back(generate_with_model("--chat", "/stats\n").err);
  EXPECT_FALSE(seeds[0] == seeds[1] && seeds[1] == seeds[2]) << seeds[0];
}

TEST(GenerateChat, TheSystemPromptComesFirst) {
  const auto tokens = [](const std::string& arguments) {
    return nlohmann::json::parse(generate_with_model(arguments + " --max-tokens 1 --json").out)["prompt_tokens"];
  };
  const nlohmann::json want =
      tokens("--prompt '<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n'");
  EXPECT_EQ(tokens("--chat --system 'be brief' --prompt hello"), want);
  const Outcome interactive = chat("--system 'be brief' --max-tokens 2", "hello\n/clear\nhello\n/stats\n");
  EXPECT_TRUE(contains(interactive.err, str_cat("context      ", want.size() + 2, " of 512 tokens, 1 turn\n")));
}

TEST(GenerateChat, CommandsAreNotMessages) {
  const std::string options = "--max-tokens 24 --quiet";
  const std::string one = chat(options, "hello\n").out;
  ASSERT_GT(one.size(), 1u);
  const std::string two = chat(options, "hello\nhello\n").out;
  EXPECT_EQ(two.substr(0, one.size()), one);
  EXPECT_NE(two, one + one);  // the second answer has seen the first
  EXPECT_EQ(chat(options, "hello\n/clear\nhello\n").out, one + one);
  EXPECT_EQ(chat(options, "/help\n/stats\n\n  \nhello").out, one);  // nor are empty lines; the last line may lack its newline
  EXPECT_EQ(chat(options, "hello\n/exit\nhello\n").out, one);
  EXPECT_EQ(chat(options, "hello\n/bye\r\nhello\n").out, one);
  const Outcome unknown = chat(options, "/etc/passwd \033[2J\nhello\n");
  EXPECT_EQ(unknown.out, one);
  EXPECT_EQ(unknown.err, "generate: there is no command '/etc/passwd \\x1b[2J': /help lists them\n");
  EXPECT_TRUE(contains(chat("", "/help\n").err, "/clear"));
}

TEST(GenerateChat, MessagesOfSeveralLines) {
  const std::string options = "--max-tokens 24 --quiet";
  const std::string one_line = chat(options, "a b\n").out;
  const std::string lines = chat(options, "a\\\nb\n").out;
  EXPECT_NE(lines, one_line);
  EXPECT_TRUE(contains(chat(options, "a\\\nb\n/stats\n").err, "1 answer\n"));
  EXPECT_EQ(chat(options, "\"\"\"a\nb\"\"\"\n").out, lines);
  EXPECT_EQ(chat(options, "\"\"\"a b\"\"\"\n").out, one_line);
  EXPECT_EQ(chat(options, "a\\\nb").out, lines);
  EXPECT_EQ(chat(options, "\"\"\"a\nb").out, chat(options, "\"\"\"a\nb\n\"\"\"\n").out);  // the end of the input ends it, too
}

TEST(GenerateChat, AFullContextForgetsTheOldestTurns) {
  const Outcome run = chat("--max-tokens 20 --context 150 --system 'be brief'", "first\nsecond\nthird\nfourth\n");
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_TRUE(contains(run.err, "[the context of 150 tokens is full: forgot the oldest 1 turn]\n"));
  // With room for one turn only, each answer is that of a new chat.
  const std::string options = "--max-tokens 20 --context 60 --quiet";
  EXPECT_EQ(chat(options, "first\nsecond\n").out, chat(options, "first\n").out + chat(options, "second\n").out);
}

TEST(GenerateChat, AMessageThatIsTooLongIsRefusedAndTheChatGoesOn) {
  const std::string options = "--max-tokens 6 --context 60";
  const std::string one = chat(options, "hello\n").out;
  const Outcome run = chat(options, "hello\n" + std::string(200, '7') + "\n/clear\nhello\n");
  EXPECT_EQ(run.out, one + one);
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_TRUE(
      contains(run.err, " tokens with the system prompt: the context is 60, and at least one token must be left for the answer"));
}

TEST(GenerateChat, InputThatCannotBeRead) {
  const std::string command = PROLOGUE_GENERATE " --device cpu --chat --model " + model();
  const std::pair<const char*, const char*> cases[] = {
      {"</tmp", "standard input cannot be read: Is a directory"},
      {"<&-", "standard input cannot be read: Bad file descriptor"},
      {"</dev/zero", "standard input has a line that is too long: at most 67108864 bytes are read"}};
  for (const auto& [input, message] : cases) {
    const int status = std::system((command + " 2>" + temp("err") + " " + input).c_str());
    EXPECT_EQ(WEXITSTATUS(status), 1) << input;
    EXPECT_TRUE(contains(read_file(temp("err")), message));
  }
}

TEST(Generate, APromptLongerThanTheContextIsRefused) {
  const std::string path = temp("long.txt");
  std::ofstream(path) << std::string(5000, 'a');
  const Outcome run = generate_with_model("--quiet --prompt-file " + path);
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_NE(run.err.find("the model's context is 512"), std::string::npos) << run.err;
}

}  // namespace
}  // namespace prologue::test
