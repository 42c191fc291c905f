#include "api_request.h"

#include <charconv>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <span>
#include <string_view>
#include <utility>

#include <prologue/engine/base/printable.h>

#include "examples/common/json_size.h"

namespace serve {

using nlohmann::json;
using namespace prologue;

namespace {

constexpr int kMaxDepth = 32;                     // of the body's JSON
constexpr int64_t kMaxValues = int64_t{1} << 21;  // in it; as tokens, several prompts of 262144
constexpr size_t kMaxChoices = 2048;              // prompts of a body, times their samples
constexpr size_t kMaxStops = 16;
constexpr size_t kMaxStopBytes = 1024;  // of each: so much of the text may be held back
constexpr size_t kMaxStopTokens = 1024;
constexpr size_t kMaxBiases = 1024;
constexpr size_t kMaxSaltBytes = 256;
constexpr int64_t kMaxEchoed = int64_t{1} << 20;  // tokens of prompts in all choices, each with its log probabilities
constexpr int32_t kMaxInt = std::numeric_limits<int32_t>::max();

// "'n' is 0: it must be a whole number between 1 and 128"
template <class... Parts>
ApiError wrong(const std::string& param, const json& value, const Parts&... rule) {
  const std::string text = printable(value.dump(-1, ' ', false, json::error_handler_t::replace));
  return {400, str_cat("'", param, "' is ", text, ": it must be ", rule...), param};
}

// The number 2.0 counts as the whole number 2: some languages write it so.
int64_t to_whole(const std::string& param, const json& value, int64_t min, int64_t max) {
  constexpr double kExact = 9007199254740992.0;  // doubles up to 2^53 are whole numbers without a gap
  std::optional<int64_t> whole;
  if (value.is_number_float()) {
    const double number = value.get<double>();
    if (std::trunc(number) == number && std::abs(number) <= kExact) whole = static_cast<int64_t>(number);
  } else if (value.is_number_unsigned()) {
    if (std::in_range<int64_t>(value.get<uint64_t>())) whole = value.get<int64_t>();
  } else if (value.is_number_integer()) {
    whole = value.get<int64_t>();
  }
  if (!whole || *whole < min || *whole > max) throw wrong(param, value, "a whole number between ", min, " and ", max);
  return *whole;
}

float to_number(const std::string& param, const json& value, double min, double max) {
  const double number = value.is_number() ? value.get<double>() : NAN;
  if (!(number >= min && number <= max)) throw wrong(param, value, "a number between ", min, " and ", max);
  return static_cast<float>(number);
}

const std::string& to_text(const std::string& param, const json& value) {
  if (!value.is_string()) throw wrong(param, value, "a string");
  return value.get_ref<const std::string&>();
}

// Reads the members of the body. A member that is null is as good as absent.
class Fields {
 public:
  explicit Fields(const json& object) : object_(object) {}

  const json* find(const char* name) const {
    const auto found = object_.find(name);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }
  int64_t whole(const char* name, int64_t fallback, int64_t min, int64_t max) const {
    const json* value = find(name);
    return value == nullptr ? fallback : to_whole(name, *value, min, max);
  }
  float number(const char* name, float fallback, double min, double max) const {
    const json* value = find(name);
    return value == nullptr ? fallback : to_number(name, *value, min, max);
  }
  bool flag(const char* name, bool fallback = false) const {
    const json* value = find(name);
    if (value != nullptr && !value->is_boolean()) throw wrong(name, *value, "true or false");
    return value == nullptr ? fallback : value->get<bool>();
  }

 private:
  const json& object_;
};

json parse_body(const std::string& body) {
  const examples::JsonSize size = examples::json_size(body);
  if (size.depth > kMaxDepth)
    throw ApiError{400, str_cat("the body is nested more than ", kMaxDepth, " deep"), {}, "invalid_json"};
  if (size.values > kMaxValues)
    throw ApiError{400, str_cat("the body has more than ", kMaxValues, " values"), {}, "invalid_json"};
  json parsed;
  try {
    parsed = json::parse(body);
  } catch (const json::parse_error& error) {
    throw ApiError{400, str_cat("the body is not valid JSON: the error is at byte ", error.byte), {}, "invalid_json"};
  } catch (const json::out_of_range&) {
    throw ApiError{400, "the body is not valid JSON: a number is too large", {}, "invalid_json"};
  }
  if (!parsed.is_object()) throw ApiError{400, "the body must be a JSON object", {}, "invalid_json"};
  return parsed;
}

void check_model(const Fields& fields, const ApiModel& model) {
  const json* name = fields.find("model");
  if (name == nullptr || to_text("model", *name) == model.name) return;
  throw ApiError{
      404,
      str_cat("there is no model ", in_quotes(name->get_ref<const std::string&>()), ": this server has ", in_quotes(model.name)),
      "model", "model_not_found"};
}

std::vector<std::string> read_stops(const Fields& fields) {
  const json* stop = fields.find("stop");
  if (stop == nullptr) return {};
  std::vector<std::string> stops;
  if (!stop->is_array()) {
    stops.push_back(to_text("stop", *stop));
  } else {
    for (const json& each : *stop) stops.push_back(to_text("stop", each));
  }
  if (stops.size() > kMaxStops)
    throw ApiError{400, str_cat("'stop' has ", stops.size(), " texts: at most ", kMaxStops, " are supported"), "stop"};
  for (const std::string& each : stops) {
    if (each.size() > kMaxStopBytes) {
      throw ApiError{400, str_cat("'stop' has a text of ", each.size(), " bytes: at most ", kMaxStopBytes, " are supported"),
                     "stop"};
    }
    if (each.empty()) throw ApiError{400, "'stop' has an empty text: it would end every output at once", "stop"};
  }
  return stops;
}

int32_t to_token(const std::string& param, const json& value, const Engine& engine) {
  return static_cast<int32_t>(to_whole(param, value, 0, engine.config().vocab_size - 1));
}

std::vector<int32_t> to_tokens(const std::string& param, const json& list, const Engine& engine) {
  if (!list.is_array()) throw wrong(param, list, "a list of token ids");
  std::vector<int32_t> tokens;
  tokens.reserve(list.size());
  for (const json& each : list) tokens.push_back(to_token(param, each, engine));
  return tokens;
}

// {"50256": -100}: JSON has only strings as names.
std::vector<std::pair<int32_t, float>> read_logit_bias(const Fields& fields, const Engine& engine) {
  const json* bias = fields.find("logit_bias");
  if (bias == nullptr) return {};
  if (!bias->is_object()) throw wrong("logit_bias", *bias, "an object of token ids and numbers");
  if (bias->size() > kMaxBiases) {
    throw ApiError{400, str_cat("'logit_bias' has ", bias->size(), " tokens: at most ", kMaxBiases, " are supported"),
                   "logit_bias"};
  }
  std::vector<std::pair<int32_t, float>> result;
  for (const auto& [name, value] : bias->items()) {
    int32_t token = -1;
    const auto [rest, error] = std::from_chars(name.data(), name.data() + name.size(), token);
    if (error != std::errc() || rest != name.data() + name.size() || token < 0 || token >= engine.config().vocab_size) {
      throw wrong("logit_bias", json(name), "a token id between 0 and ", engine.config().vocab_size - 1);
    }
    result.emplace_back(token, to_number("logit_bias", value, -100.0, 100.0));
  }
  return result;
}

uint64_t random_seed() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

std::vector<int32_t> read_stop_tokens(const Fields& fields, const Engine& engine) {
  const json* tokens = fields.find("stop_token_ids");
  if (tokens == nullptr) return {};
  if (tokens->size() > kMaxStopTokens) {
    throw ApiError{400, str_cat("'stop_token_ids' has ", tokens->size(), " tokens: at most ", kMaxStopTokens, " are supported"),
                   "stop_token_ids"};
  }
  return to_tokens("stop_token_ids", *tokens, engine);
}

std::string read_salt(const Fields& fields, const ApiModel& model) {
  const json* salt = fields.find("cache_salt");
  if (salt == nullptr) return model.private_prefixes ? str_cat(random_seed(), " ", random_seed()) : std::string();
  if (const std::string& text = to_text("cache_salt", *salt); text.empty() || text.size() > kMaxSaltBytes) {
    throw ApiError{400, str_cat("'cache_salt' has ", text.size(), " bytes: it must have between 1 and ", kMaxSaltBytes),
                   "cache_salt"};
  }
  return salt->get<std::string>();
}

// OpenAI's predicted outputs: {"type": "content", "content": a string or text parts}.
std::vector<int32_t> read_prediction(const Fields& fields, const ApiModel& model) {
  const json* prediction = fields.find("prediction");
  if (prediction == nullptr) return {};
  if (!prediction->is_object()) throw wrong("prediction", *prediction, "an object with a type and a content");
  check_names(*prediction, {"type", "content"}, "prediction", *model.unknown);
  const json* const type = Fields(*prediction).find("type");
  if (type == nullptr || *type != "content") throw wrong("prediction.type", type == nullptr ? json() : *type, "\"content\"");
  const json* const content = Fields(*prediction).find("content");
  std::string text;
  if (content != nullptr && content->is_array()) {
    for (const json& part : *content) {
      if (!part.is_object() || part.value("type", json()) != "text" || !part.value("text", json()).is_string()) {
        throw wrong("prediction.content", part, "a string, or a list of parts {\"type\": \"text\", \"text\": ...}");
      }
      text += part["text"].get<std::string>();
    }
  } else {
    text = to_text("prediction.content", content == nullptr ? json() : *content);
  }
  if (model.engine->options().speculation != Speculation::prompt_lookup) return {};  // nothing looks it up
  Result<std::vector<int32_t>> tokens = model.engine->tokenizer().encode(text, false, false);
  if (tokens.ok()) tokens->resize(std::min(tokens->size(), static_cast<size_t>(model.engine->context_length())));
  if (!tokens.ok()) throw ApiError{400, str_cat("'prediction' cannot be read: ", tokens.status().message()), "prediction"};
  return std::move(tokens).value();
}

// A limit of -1 is that of the context, which the engine observes.
int64_t read_max_tokens(const Fields& fields, const char* name, int64_t fallback, int64_t min, const Engine& engine) {
  const int64_t limit = fields.whole(name, fallback, -1, kMaxInt);
  if (limit == -1) return engine.context_length();
  if (limit < min)
    throw wrong(name, json(limit), "a whole number between ", min, " and ", kMaxInt, ", or -1, as many as the context allows");
  return limit;
}

// Reads what both kinds of requests have.
Request read_common(const Fields& fields, const ApiModel& model, ApiRequest& result) {
  check_model(fields, model);
  const Engine& engine = *model.engine;

  Request request;
  request.group = std::make_shared<RequestGroup>();  // the scheduler treats the prompts of a body as one
  request.num_samples = fields.whole("n", 1, 1, kMaxSamples);
  if (const int64_t best_of = fields.whole("best_of", request.num_samples, 1, kMaxInt); best_of != request.num_samples) {
    throw ApiError{
        400, str_cat("'best_of' is ", best_of, ": it is not supported, except equal to 'n', which is ", request.num_samples),
        "best_of", "unsupported_value"};
  }
  SamplingOptions& sampling = request.sampling;
  sampling.temperature = 1.0f;
  sampling = engine.default_sampling().over(sampling);
  sampling.temperature = fields.number("temperature", sampling.temperature, 0.0, 2.0);
  sampling.top_p = fields.number("top_p", sampling.top_p, 0.0, 1.0);
  // 0 means only the most likely token; for the engine, it must be above 0.
  if (sampling.top_p == 0.0f) sampling.top_p = std::numeric_limits<float>::min();
  sampling.min_p = fields.number("min_p", sampling.min_p, 0.0, 1.0);
  sampling.top_k = static_cast<int32_t>(fields.whole("top_k", sampling.top_k, -1, kMaxInt));
  if (sampling.top_k == -1) sampling.top_k = 0;  // both mean "off"
  sampling.repetition_penalty = fields.number("repetition_penalty", sampling.repetition_penalty, 0.01, 100.0);
  sampling.presence_penalty = fields.number("presence_penalty", 0.0f, -2.0, 2.0);
  sampling.frequency_penalty = fields.number("frequency_penalty", 0.0f, -2.0, 2.0);
  sampling.logit_bias = read_logit_bias(fields, engine);
  if (const json* seed = fields.find("seed"); seed == nullptr || *seed == -1) {  // as in llama.cpp and vLLM
    sampling.seed = random_seed();
  } else if (seed->is_number_unsigned()) {
    sampling.seed = seed->get<uint64_t>();
  } else {
    sampling.seed =
        static_cast<uint64_t>(to_whole("seed", *seed, std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max()));
  }
  request.stop = read_stops(fields);
  request.stop_tokens = read_stop_tokens(fields, engine);
  request.ignore_eos = fields.flag("ignore_eos");
  request.cache_salt = read_salt(fields, model);
  request.prediction = read_prediction(fields, model);

  result.stream = fields.flag("stream");
  if (const json* options = fields.find("stream_options")) {
    if (!result.stream) throw ApiError{400, "'stream_options' needs 'stream': true", "stream_options"};
    if (!options->is_object()) throw wrong("stream_options", *options, "an object");
    check_names(*options, {"include_usage"}, "stream_options", *model.unknown);
    result.include_usage = Fields(*options).flag("include_usage");
  }
  return request;
}

void add_prompt(ApiRequest& result, std::vector<int32_t> tokens, const char* param, const Engine& engine) {
  const int64_t length = static_cast<int64_t>(tokens.size()), context = engine.context_length();
  if (tokens.empty()) throw ApiError{400, str_cat("'", param, "' is empty: a prompt must have at least one token"), param};
  if (length + std::min<int64_t>(result.common.max_tokens, 1) > context) {
    throw ApiError{400,
                   str_cat("'", param, "' has ", length, " tokens: the context is ", context, " tokens",
                           result.common.max_tokens > 0 ? ", and at least one must be left for the output" : ""),
                   param, "context_length_exceeded"};
  }
  result.prompts.push_back(std::move(tokens));
}

std::vector<int32_t> encode(const std::string& text, const Engine& engine) {
  const Tokenizer& tokenizer = engine.tokenizer();
  auto tokens = tokenizer.encode(text, true, tokenizer.add_bos());
  if (!tokens.ok()) throw ApiError{400, tokens.status().message(), "prompt"};
  return std::move(tokens).value();
}

// Returns the text of a prompt of tokens: what they print.
std::string text_of(std::span<const int32_t> tokens, const Tokenizer& tokenizer) {
  StreamDecoder decoder(tokenizer, /*continues_text=*/false);
  std::string text;
  for (const int32_t token : tokens) text += decoder.push(token);
  return text + decoder.finish();
}

// Reads a prompt: a text, or a list of tokens.
void read_prompt(ApiRequest& result, const json& prompt, const Engine& engine) {
  const bool is_text = prompt.is_string();
  std::vector<int32_t> tokens =
      is_text ? encode(prompt.get_ref<const std::string&>(), engine) : to_tokens("prompt", prompt, engine);
  if (result.echo) result.echo_texts.push_back(is_text ? prompt.get<std::string>() : text_of(tokens, engine.tokenizer()));
  add_prompt(result, std::move(tokens), "prompt", engine);
}

// Checks prompts that come back with the answer, as often as there are samples.
void check_echo(const ApiRequest& result) {
  int64_t num_tokens = 0;
  for (const std::vector<int32_t>& prompt : result.prompts) num_tokens += static_cast<int64_t>(prompt.size());
  const int64_t echoed = num_tokens * result.common.num_samples * (result.common.num_logprobs + 2);
  if (echoed > kMaxEchoed) {
    throw ApiError{400,
                   str_cat("'echo' of ", num_tokens, " tokens, times 'n' and the log probabilities of each, is ", echoed,
                           ": at most ", kMaxEchoed, " are supported"),
                   "echo"};
  }
}

// Reads the content of a message: a string, or a list of parts {"type": "text", "text": ...}.
std::string read_content(const std::string& param, const json& content, UnknownFields& unknown) {
  if (!content.is_array()) return to_text(param, content);
  std::string text;
  for (const json& part : content) {
    if (!part.is_object()) throw wrong(param, part, "an object with 'type' and 'text'");
    if (part.value("type", json()) != "text") {
      throw ApiError{400, str_cat("'", param, "' has a part that is not text: only parts of the type \"text\" are supported"),
                     param, "unsupported_value"};
    }
    check_names(part, {"type", "text"}, param, unknown);
    text += to_text(param + ".text", part.value("text", json()));
  }
  return text;
}

// Returns what a message has besides its role and content, as a JSON object for the chat template.
std::string read_more(const std::string& param, const json& message) {
  json more = json::object();
  for (const char* name : {"name", "reasoning_content", "reasoning", "thinking"}) {
    const json value = message.value(name, json());
    if (!value.is_null()) more[name] = to_text(str_cat(param, ".", name), value);
  }
  return more.empty() ? std::string() : more.dump();
}

std::vector<ChatMessage> read_messages(const Fields& fields, UnknownFields& unknown) {
  const json* list = fields.find("messages");
  if (list == nullptr) throw ApiError{400, "'messages' is missing", "messages"};
  if (!list->is_array() || list->empty()) throw wrong("messages", *list, "a list with at least one message");
  std::vector<ChatMessage> messages;
  for (size_t i = 0; i < list->size(); ++i) {
    const json& message = (*list)[i];
    const std::string param = str_cat("messages[", i, "]");
    if (!message.is_object()) throw wrong(param, message, "an object with 'role' and 'content'");
    const std::string role = to_text(param + ".role", message.value("role", json()));
    if (role != "system" && role != "developer" && role != "user" && role != "assistant") {
      throw wrong(param + ".role", role, "one of system, developer, user and assistant");
    }
    check_names(message, {"role", "content", "name", "reasoning_content", "reasoning", "thinking"}, param, unknown);
    messages.push_back(
        {role, read_content(param + ".content", message.value("content", json()), unknown), read_more(param, message)});
  }
  return messages;
}

ChatOptions read_chat_options(const Fields& fields) {
  ChatOptions options;
  options.continue_final_message = fields.flag("continue_final_message");
  options.add_generation_prompt = fields.flag("add_generation_prompt", !options.continue_final_message);
  if (options.continue_final_message && options.add_generation_prompt) {
    throw ApiError{400, "'continue_final_message' and 'add_generation_prompt' exclude each other", "continue_final_message"};
  }
  if (const json* variables = fields.find("chat_template_kwargs")) {
    if (!variables->is_object()) throw wrong("chat_template_kwargs", *variables, "an object");
    options.variables = variables->dump();
  }
  return options;
}

}  // namespace

ApiRequest read_completion_request(const std::string& body, const ApiModel& model) {
  const json object = parse_body(body);
  check_names(object,
              {"best_of",
               "cache_salt",
               "echo",
               "frequency_penalty",
               "ignore_eos",
               "logit_bias",
               "logprobs",
               "max_tokens",
               "min_p",
               "model",
               "n",
               "prediction",
               "presence_penalty",
               "prompt",
               "repetition_penalty",
               "seed",
               "stop",
               "stop_token_ids",
               "stream",
               "stream_options",
               "temperature",
               "top_k",
               "top_p"},
              {}, *model.unknown);
  const Fields fields(object);
  const Engine& engine = *model.engine;
  ApiRequest result;
  Request request = read_common(fields, model, result);
  result.echo = fields.flag("echo");
  request.max_tokens = read_max_tokens(fields, "max_tokens", 16, result.echo ? 0 : 1, engine);
  request.num_logprobs = fields.whole("logprobs", -1, 0, kMaxTopLogprobs);

  result.common = std::move(request);

  const json* prompt = fields.find("prompt");
  if (prompt == nullptr) throw ApiError{400, "'prompt' is missing", "prompt"};
  if (prompt->is_string() || (prompt->is_array() && !prompt->empty() && prompt->front().is_number())) {
    read_prompt(result, *prompt, engine);
  } else if (!prompt->is_array() || prompt->empty()) {
    throw wrong("prompt", *prompt, "a string, a list of strings, a list of token ids, or a list of such lists");
  } else {
    if (prompt->size() * result.num_samples() > kMaxChoices)
      throw ApiError{400,
                     str_cat("'prompt' has ", prompt->size(), " prompts, and 'n' is ", result.num_samples(), ": at most ",
                             kMaxChoices, " choices are supported"),
                     "prompt"};
    for (const json& each : *prompt) read_prompt(result, each, engine);
  }
  if (result.echo) check_echo(result);
  return result;
}

ApiRequest read_chat_request(const std::string& body, const ApiModel& model) {
  const json object = parse_body(body);
  check_names(object,
              {"add_generation_prompt",
               "best_of",
               "cache_salt",
               "chat_template_kwargs",
               "continue_final_message",
               "frequency_penalty",
               "ignore_eos",
               "logit_bias",
               "logprobs",
               "max_completion_tokens",
               "max_tokens",
               "messages",
               "min_p",
               "model",
               "n",
               "prediction",
               "presence_penalty",
               "repetition_penalty",
               "seed",
               "stop",
               "stop_token_ids",
               "stream",
               "stream_options",
               "temperature",
               "top_k",
               "top_logprobs",
               "top_p"},
              {}, *model.unknown);
  const Fields fields(object);
  const Engine& engine = *model.engine;
  ApiRequest result;
  result.chat = true;
  Request request = read_common(fields, model, result);
  // Without a limit, the context is the limit.
  const char* limit = fields.find("max_completion_tokens") != nullptr ? "max_completion_tokens" : "max_tokens";
  request.max_tokens = read_max_tokens(fields, limit, -1, 1, engine);
  const int64_t top_logprobs = fields.whole("top_logprobs", 0, 0, kMaxTopLogprobs);
  if (fields.flag("logprobs")) {
    request.num_logprobs = top_logprobs;
  } else if (top_logprobs > 0) {
    throw ApiError{400, "'top_logprobs' needs 'logprobs': true", "top_logprobs"};
  }

  const std::vector<ChatMessage> messages = read_messages(fields, *model.unknown);
  if (!model.chat.ok())
    throw ApiError{400, str_cat("this model cannot chat: ", model.chat.status().message()), {}, "no_chat_format"};
  auto tokens = model.chat.value().encode_chat(messages, read_chat_options(fields));
  if (!tokens.ok()) throw ApiError{400, tokens.status().message(), "messages"};
  for (const int32_t token : model.chat.value().stop_tokens()) request.stop_tokens.push_back(token);
  result.common = std::move(request);
  add_prompt(result, std::move(tokens).value(), "messages", engine);
  return result;
}

}  // namespace serve
