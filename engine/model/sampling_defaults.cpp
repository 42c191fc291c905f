#include <prologue/engine/model/sampling_defaults.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <span>
#include <string_view>

#include <prologue/kernels/base/status.h>

namespace prologue {
namespace {

// Names a value that is not supported, and the number with which it has no effect.
struct Unsupported {
  std::string_view key;
  double neutral = std::numeric_limits<double>::quiet_NaN();  // there is none
};
constexpr Unsupported kUnsupportedHuggingFace[] = {{"typical_p", 1},
                                                   {"top_h"},
                                                   {"epsilon_cutoff", 0},
                                                   {"eta_cutoff", 0},
                                                   {"no_repeat_ngram_size", 0},
                                                   {"bad_words_ids"},
                                                   {"suppress_tokens"},
                                                   {"begin_suppress_tokens"},
                                                   {"forced_bos_token_id"},
                                                   {"forced_eos_token_id"},
                                                   {"num_beams", 1},
                                                   {"penalty_alpha", 0},
                                                   {"guidance_scale", 1},
                                                   {"sequence_bias"},
                                                   {"exponential_decay_length_penalty"},
                                                   {"min_length", 0},
                                                   {"min_new_tokens", 0}};
constexpr Unsupported kUnsupportedGguf[] = {{"sequence"}, {"xtc_probability", 0}, {"penalty_last_n"}, {"mirostat", 0}};

class Reader {
 public:
  Reader(const Checkpoint& checkpoint, std::vector<std::string>& warnings)
      : checkpoint_(checkpoint),
        is_gguf_(checkpoint.format() == Checkpoint::Format::gguf),
        prefix_(is_gguf_ ? "general.sampling." : "generation_config."),
        warnings_(warnings) {}

  SamplingDefaults read() {
    SamplingDefaults defaults;
    defaults.temperature =
        number(is_gguf_ ? "temp" : "temperature", "0 (greedy) or positive", [](double value) { return value >= 0.0; });
    defaults.top_k = top_k();
    defaults.top_p = number("top_p", "above 0 and at most 1 (off)", [](double value) { return value > 0.0 && value <= 1.0; });
    defaults.min_p = number("min_p", "between 0 (off) and 1", [](double value) { return value >= 0.0 && value <= 1.0; });
    defaults.repetition_penalty =
        number(is_gguf_ ? "penalty_repeat" : "repetition_penalty", "positive", [](double value) { return value > 0.0; });
    if (!is_gguf_) apply_do_sample(defaults);
    for (const auto& [key, neutral] : is_gguf_ ? std::span<const Unsupported>(kUnsupportedGguf) : kUnsupportedHuggingFace) {
      if (!checkpoint_.has(prefix_ + std::string(key))) continue;
      const auto value = checkpoint_.number(prefix_ + std::string(key));
      if (!value.ok() || *value != neutral) warn(key, "is not supported: it is not applied");
    }
    return defaults;
  }

 private:
  void warn(std::string_view key, const std::string& what) const {
    warnings_.push_back(
        str_cat(checkpoint_.path(), ": ", is_gguf_ ? prefix_ : std::string("generation_config.json: "), key, " ", what));
  }

  // Returns the value of a key, if it exists and is a finite number that obeys the rule.
  template <class Obeys>
  std::optional<float> number(std::string_view key, const char* rule, const Obeys& obeys) const {
    if (!checkpoint_.has(prefix_ + std::string(key))) return std::nullopt;
    const auto value = checkpoint_.number(prefix_ + std::string(key));
    if (!value.ok()) {
      warn(key, "is no number: it is not applied");
    } else if (const auto rounded = static_cast<float>(*value); !std::isfinite(rounded) || !obeys(static_cast<double>(rounded))) {
      warn(key, str_cat("is ", *value, ": it must be ", rule, ", and is not applied"));
    } else {
      return rounded;
    }
    return std::nullopt;
  }

  // 0 and less mean that it is off.
  std::optional<int32_t> top_k() const {
    if (!checkpoint_.has(prefix_ + "top_k")) return std::nullopt;
    const auto value = checkpoint_.integer(prefix_ + "top_k");
    if (value.ok()) return static_cast<int32_t>(std::clamp<int64_t>(*value, 0, std::numeric_limits<int32_t>::max()));
    warn("top_k", "is no whole number: it is not applied");
    return std::nullopt;
  }

  void apply_do_sample(SamplingDefaults& defaults) const {
    const auto do_sample = checkpoint_.flag(prefix_ + "do_sample");
    if (!do_sample.ok()) return;
    if (!*do_sample) {
      const std::optional<float> penalty = defaults.repetition_penalty;
      defaults = {};
      defaults.temperature = 0.0f;
      defaults.repetition_penalty = penalty;
    } else if (!defaults.temperature) {
      defaults.temperature = 1.0f;
    }
  }

  const Checkpoint& checkpoint_;
  const bool is_gguf_;
  const std::string prefix_;
  std::vector<std::string>& warnings_;
};

}  // namespace

SamplingDefaults read_sampling_defaults(const Checkpoint& checkpoint, std::vector<std::string>& warnings) {
  return Reader(checkpoint, warnings).read();
}

}  // namespace prologue
