#include "api_request.h"

#include <charconv>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <string_view>

#include <prologue/engine/base/printable.h>

namespace serve {

using nlohmann::json;
using namespace prologue;

namespace {

constexpr int kMaxDepth = 32;         // of the body's JSON
constexpr size_t kMaxPrompts = 2048;  // of one body
constexpr size_t kMaxStops = 16;
constexpr int32_t kMaxInt = std::numeric_limits<int32_t>::max();

// "'n' is 0: it must be a whole number between 1 and 128"
template <class... Parts>
ApiError wrong(const std::string& param, const json& value, const Parts&... rule) {
  const std::string text = printable(value.dump(-1, ' ', false, json::error_handler_t::replace));
  return {400, str_cat("'", param, "' is ", text, ": it must be ", rule...), param};
}

int64_t to_whole(const std::string& param, const json& value, int64_t min, int64_t max) {
  const bool in_range = value.is_number_integer() &&
                        !(value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()}) &&
                        value.get<int64_t>() >= min && value.get<int64_t>() <= max;
  if (!in_range) throw wrong(param, value, "a whole number between ", min, " and ", max);
  return value.get<int64_t>();
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

// The members of the body. A member that is null is as good as absent.
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
  bool too_deep = false;
  const auto check_depth = [&](int depth, json::parse_event_t event, json&) {
    too_deep = too_deep ||
               (depth >= kMaxDepth && (event == json::parse_event_t::array_start || event == json::parse_event_t::object_start));
    return !too_deep;
  };
  json parsed;
  try {
    parsed = json::parse(body, check_depth);
  } catch (const json::parse_error& error) {
    throw ApiError{400, str_cat("the body is not valid JSON: the error is at byte ", error.byte), {}, "invalid_json"};
  } catch (const json::out_of_range&) {
    throw ApiError{400, "the body is not valid JSON: a number is too large", {}, "invalid_json"};
  }
  if (too_deep) throw ApiError{400, str_cat("the body is nested more than ", kMaxDepth, " deep"), {}, "invalid_json"};
  if (!parsed.is_object()) throw ApiError{400, "the body must be a JSON object", {}, "invalid_json"};
  return parsed;
}

// Features that other servers have: a request that asks for one must not get an answer without it.
void refuse_unsupported(const Fields& fields) {
  for (const char* name : {"suffix", "tools", "tool_choice", "functions", "function_call", "audio", "prediction",
                           "web_search_options", "use_beam_search", "min_tokens", "prompt_logprobs", "echo", "structured_outputs",
                           "guided_json", "guided_regex", "guided_choice", "guided_grammar"}) {
    const json* value = fields.find(name);
    if (value == nullptr || value->empty() || *value == false || *value == 0 || *value == "" || *value == "none" ||
        *value == "auto")
      continue;
    throw ApiError{400, str_cat("'", name, "' is not supported"), name, "unsupported_value"};
  }
  if (const json* format = fields.find("response_format");
      format != nullptr && (!format->is_object() || format->value("type", json()) != "text")) {
    throw ApiError{400, "'response_format' is not supported, except {\"type\": \"text\"}", "response_format",
                   "unsupported_value"};
  }
  if (const json* modalities = fields.find("modalities"); modalities != nullptr && *modalities != json::array({"text"})) {
    throw ApiError{400, "'modalities' is not supported, except [\"text\"]", "modalities", "unsupported_value"};
  }
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

// What both kinds of requests have. Request::prompt is still empty.
Request read_common(const Fields& fields, const ApiModel& model, ApiRequest& result) {
  check_model(fields, model);
  refuse_unsupported(fields);
  const Engine& engine = *model.engine;

  Request request;
  request.num_samples = fields.whole("n", 1, 1, kMaxSamples);
  if (const int64_t best_of = fields.whole("best_of", request.num_samples, 1, kMaxInt); best_of != request.num_samples) {
    throw ApiError{
        400, str_cat("'best_of' is ", best_of, ": it is not supported, except equal to 'n', which is ", request.num_samples),
        "best_of", "unsupported_value"};
  }
  SamplingOptions& sampling = request.sampling;
  sampling.temperature = fields.number("temperature", 1.0f, 0.0, 2.0);
  sampling.top_p = fields.number("top_p", 1.0f, 0.0, 1.0);
  // 0 means the most likely token alone; for the engine, it must be above 0.
  if (sampling.top_p == 0.0f) sampling.top_p = std::numeric_limits<float>::min();
  sampling.min_p = fields.number("min_p", 0.0f, 0.0, 1.0);
  sampling.top_k = static_cast<int32_t>(fields.whole("top_k", 0, -1, kMaxInt));
  if (sampling.top_k == -1) sampling.top_k = 0;  // both mean "off"
  sampling.repetition_penalty = fields.number("repetition_penalty", 1.0f, 0.01, 100.0);
  sampling.presence_penalty = fields.number("presence_penalty", 0.0f, -2.0, 2.0);
  sampling.frequency_penalty = fields.number("frequency_penalty", 0.0f, -2.0, 2.0);
  sampling.logit_bias = read_logit_bias(fields, engine);
  if (const json* seed = fields.find("seed"); seed == nullptr) {
    sampling.seed = random_seed();
  } else if (seed->is_number_unsigned()) {
    sampling.seed = seed->get<uint64_t>();
  } else {
    sampling.seed =
        static_cast<uint64_t>(to_whole("seed", *seed, std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max()));
  }
  request.stop = read_stops(fields);
  if (const json* tokens = fields.find("stop_token_ids")) request.stop_tokens = to_tokens("stop_token_ids", *tokens, engine);
  request.ignore_eos = fields.flag("ignore_eos");

  result.stream = fields.flag("stream");
  if (const json* options = fields.find("stream_options")) {
    if (!result.stream) throw ApiError{400, "'stream_options' needs 'stream': true", "stream_options"};
    if (!options->is_object()) throw wrong("stream_options", *options, "an object");
    result.include_usage = Fields(*options).flag("include_usage");
  }
  return request;
}

void add_prompt(ApiRequest& result, Request request, std::vector<int32_t> tokens, const char* param, const Engine& engine) {
  const int64_t length = static_cast<int64_t>(tokens.size()), context = engine.context_length();
  if (tokens.empty()) throw ApiError{400, str_cat("'", param, "' is empty: a prompt must have at least one token"), param};
  if (length >= context) {
    throw ApiError{400,
                   str_cat("'", param, "' has ", length, " tokens: the context is ", context,
                           " tokens, and at least one must be left for the output"),
                   param, "context_length_exceeded"};
  }
  request.prompt = std::move(tokens);
  result.prompts.push_back(std::move(request));
}

std::vector<int32_t> encode(const std::string& text, const Engine& engine) {
  const Tokenizer& tokenizer = engine.tokenizer();
  auto tokens = tokenizer.encode(text, true, tokenizer.add_bos());
  if (!tokens.ok()) throw ApiError{400, tokens.status().message(), "prompt"};
  return std::move(tokens).value();
}

// The content of a message: a string, or a list of parts {"type": "text", "text": ...}.
std::string read_content(const std::string& param, const json& content) {
  if (!content.is_array()) return to_text(param, content);
  std::string text;
  for (const json& part : content) {
    if (!part.is_object()) throw wrong(param, part, "an object with 'type' and 'text'");
    if (part.value("type", json()) != "text") {
      throw ApiError{400, str_cat("'", param, "' has a part that is not text: only parts of the type \"text\" are supported"),
                     param, "unsupported_value"};
    }
    text += to_text(param + ".text", part.value("text", json()));
  }
  return text;
}

// What a message has besides its role and content, as a JSON object for the chat template.
std::string read_more(const std::string& param, const json& message) {
  json more = json::object();
  for (const char* name : {"name", "reasoning_content", "reasoning", "thinking"}) {
    const json value = message.value(name, json());
    if (!value.is_null()) more[name] = to_text(str_cat(param, ".", name), value);
  }
  return more.empty() ? std::string() : more.dump();
}

std::vector<ChatMessage> read_messages(const Fields& fields) {
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
    if (const json calls = message.value("tool_calls", json()); !calls.empty()) {
      throw ApiError{400, str_cat("'", param, ".tool_calls' is not supported"), param + ".tool_calls", "unsupported_value"};
    }
    messages.push_back({role, read_content(param + ".content", message.value("content", json())), read_more(param, message)});
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
  const Fields fields(object);
  const Engine& engine = *model.engine;
  ApiRequest result;
  Request request = read_common(fields, model, result);
  request.max_tokens = fields.whole("max_tokens", 16, 1, kMaxInt);
  request.num_logprobs = fields.whole("logprobs", -1, 0, kMaxTopLogprobs);

  const json* prompt = fields.find("prompt");
  if (prompt == nullptr) throw ApiError{400, "'prompt' is missing", "prompt"};
  if (prompt->is_string()) {
    add_prompt(result, request, encode(prompt->get_ref<const std::string&>(), engine), "prompt", engine);
  } else if (!prompt->is_array() || prompt->empty()) {
    throw wrong("prompt", *prompt, "a string, a list of strings, a list of token ids, or a list of such lists");
  } else if (prompt->front().is_number()) {
    add_prompt(result, request, to_tokens("prompt", *prompt, engine), "prompt", engine);
  } else {
    if (prompt->size() > kMaxPrompts)
      throw ApiError{400, str_cat("'prompt' has ", prompt->size(), " prompts: at most ", kMaxPrompts, " are supported"),
                     "prompt"};
    for (const json& each : *prompt) {
      add_prompt(result, request,
                 each.is_string() ? encode(each.get_ref<const std::string&>(), engine) : to_tokens("prompt", each, engine),
                 "prompt", engine);
    }
  }
  return result;
}

ApiRequest read_chat_request(const std::string& body, const ApiModel& model) {
  const json object = parse_body(body);
  const Fields fields(object);
  const Engine& engine = *model.engine;
  ApiRequest result;
  result.chat = true;
  Request request = read_common(fields, model, result);
  // Without a limit, the context is the limit.
  const char* limit = fields.find("max_completion_tokens") != nullptr ? "max_completion_tokens" : "max_tokens";
  request.max_tokens = fields.whole(limit, engine.context_length(), 1, kMaxInt);
  const int64_t top_logprobs = fields.whole("top_logprobs", 0, 0, kMaxTopLogprobs);
  if (fields.flag("logprobs")) {
    request.num_logprobs = top_logprobs;
  } else if (top_logprobs > 0) {
    throw ApiError{400, "'top_logprobs' needs 'logprobs': true", "top_logprobs"};
  }

  const std::vector<ChatMessage> messages = read_messages(fields);
  if (!model.chat.ok())
    throw ApiError{400, str_cat("this model cannot chat: ", model.chat.status().message()), {}, "no_chat_format"};
  auto tokens = model.chat.value().encode_chat(messages, read_chat_options(fields));
  if (!tokens.ok()) throw ApiError{400, tokens.status().message(), "messages"};
  for (const int32_t token : model.chat.value().stop_tokens()) request.stop_tokens.push_back(token);
  add_prompt(result, std::move(request), std::move(tokens).value(), "messages", engine);
  return result;
}

}  // namespace serve
