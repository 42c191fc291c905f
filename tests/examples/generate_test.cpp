// The program `generate` as people use it: flags, JSON, exit codes, messages.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "tests/support/gguf_writer.h"

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

std::string temp(const std::string& name) {
  std::string test = testing::UnitTest::GetInstance()->current_test_info()->name();
  std::replace(test.begin(), test.end(), '/', '_');
  return testing::TempDir() + "prologue_generate_test_" + test + "_" + name;
}

// `arguments` are shell words.
Outcome generate(const std::string& arguments) {
  const std::string out = temp("out"), err = temp("err");
  const int status = std::system((PROLOGUE_GENERATE " " + arguments + " >" + out + " 2>" + err + " </dev/null").c_str());
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

Outcome generate_with_model(const std::string& arguments) { return generate("--device cpu --model " + model() + " " + arguments); }

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
  for (const char* row : {"model  ", "device, dtype        cpu, float32", "prompt tokens        ", "generated tokens     5",
                          "time to first token  ", "prefill              ", "decoding             "}) {
    EXPECT_NE(run.err.find(row), std::string::npos) << row << "\n" << run.err;
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
  EXPECT_EQ(objects[0]["stop"], "length");
  EXPECT_EQ(objects[0]["device"], "cpu");
  EXPECT_EQ(objects[0]["dtype"], "float32");
  for (const char* key : {"load_s", "prefill_tokens", "prefill_s", "decode_tokens", "decode_s"}) {
    EXPECT_TRUE(objects[0]["timings"].contains(key)) << key;
  }
  EXPECT_EQ(objects[1], nlohmann::json::parse(
                            R"({"prompt": "", "error": "the prompt is empty: there must be at least one token to go on from"})"));
  EXPECT_EQ(objects[2]["prompt"], "good bye");
  EXPECT_EQ(objects[2]["text"].get<std::string>().empty(), false);
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
  for (const char* key : {"argmax", "logit_of_argmax", "logit_of_token", "logprob_of_token"}) EXPECT_EQ(first[key].size(), 3u) << key;
  EXPECT_GT(first["perplexity"].get<double>(), 1.0);
  ASSERT_TRUE(std::getline(lines, line));
}

TEST(Generate, PrintsTheGraphFusedOrNot) {
  const Outcome fused = generate_with_model("--print-graph");
  const Outcome unfused = generate_with_model("--print-graph=table --unfused");
  const Outcome dot = generate_with_model("--print-graph=dot");
  EXPECT_EQ(fused.exit_code, 0) << fused.err;
  EXPECT_NE(fused.out.find("layers.0.attention.prologue "), std::string::npos) << fused.out;
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
  for (const char* flag : {"--model", "--prompt", "--prompt-file", "--chat", "--max-tokens", "--temperature", "--top-k", "--top-p",
                           "--min-p", "--seed", "--stop", "--ignore-eos", "--device", "--dtype", "--page-size", "--context",
                           "--threads", "--unfused", "--print-graph", "--profile", "--score", "--json", "--quiet"}) {
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
    testing::Values(BadCase{"", 2, "--model is required"}, BadCase{"--model MODEL", 2, "there is nothing to do"},
                    BadCase{"--model MODEL --prompt x --no-such-flag", 2, "--no-such-flag"},
                    BadCase{"--model MODEL --prompt x --max-tokens 0", 2, "--max-tokens is 0: it must be at least 1"},
                    BadCase{"--model MODEL --prompt x --max-tokens many", 2, "many"},
                    BadCase{"--model MODEL --prompt x --temperature -1", 2, "--temperature is -1"},
                    BadCase{"--model MODEL --prompt x --top-p 2", 2, "--top-p is 2"},
                    BadCase{"--model MODEL --prompt x --page-size 0", 2, "--page-size is 0"},
                    BadCase{"--model MODEL --prompt x --device tpu", 2, "tpu"},
                    BadCase{"--model MODEL --prompt x --dtype int3", 2, "int3"},
                    BadCase{"--model MODEL --prompt x --prompt-file y", 2, "exclude each other"},
                    BadCase{"--model MODEL --prompt-file /nowhere", 1, "cannot be read"},
                    BadCase{"--model MODEL --score /nowhere", 1, "cannot be read"},
                    BadCase{"--model MODEL --score EMPTY", 1, "must be a JSON list"},
                    BadCase{"--model /nowhere.gguf --prompt x", 1, "/nowhere.gguf"}, BadCase{"--model EMPTY --prompt x", 1, "empty"},
                    BadCase{"--model /tmp --prompt x", 1, "/tmp"}, BadCase{"--model " PROLOGUE_GENERATE " --prompt x", 1, "GGUF"},
                    BadCase{"--device cpu --model MODEL --prompt ''", 1, "the prompt is empty"}));

TEST(Generate, APromptLongerThanTheContextIsRefused) {
  const std::string path = temp("long.txt");
  std::ofstream(path) << std::string(5000, 'a');
  const Outcome run = generate_with_model("--quiet --prompt-file " + path);
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_NE(run.err.find("the model's context is 512"), std::string::npos) << run.err;
}

}  // namespace
}  // namespace prologue::test
