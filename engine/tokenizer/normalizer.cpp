#include <algorithm>

#include <prologue/engine/base/printable.h>
#include <prologue/engine/base/utf8.h>
#include <prologue/engine/tokenizer/normalizer.h>
#include <prologue/engine/tokenizer/unicode.h>

namespace prologue {
namespace {

constexpr size_t kMaxBytes = size_t{256} << 20;

Status check_text(std::string_view text) {
  if (is_valid_utf8(text)) return ok_status();
  return data_loss("the normalizer's text ", in_quotes(text), " is not UTF-8");
}

// It ends where the result gets longer than `most`.
Result<std::string> replaced(std::string_view text, const PatternFinder& pattern, std::string_view replacement, size_t most) {
  RegexScratch scratch;
  std::string result;
  size_t copied = 0;
  PROLOGUE_RETURN_IF_ERROR(pattern.find_each(text, scratch, [&](const Regex::Match& match) {
    result += text.substr(copied, match.begin - copied);
    result += replacement;
    copied = match.end;
    return result.size() <= most;
  }));
  return result += text.substr(copied);
}

}  // namespace

Result<Normalizer> Normalizer::create(const std::vector<NormalizerStep>& steps) {
  if (steps.size() > kMaxTokenizerSteps) {
    return unsupported("the normalizer has ", steps.size(), " steps: at most ", kMaxTokenizerSteps, " are supported");
  }
  Normalizer normalizer;
  for (const NormalizerStep& step : steps) {
    if (const auto* form = std::get_if<UnicodeForm>(&step)) {
      normalizer.steps_.emplace_back(*form);
    } else if (const auto* prepend = std::get_if<PrependText>(&step)) {
      PROLOGUE_RETURN_IF_ERROR(check_text(prepend->text));
      normalizer.steps_.emplace_back(*prepend);
    } else if (const auto* strip = std::get_if<StripWhiteSpace>(&step)) {
      normalizer.steps_.emplace_back(*strip);
    } else {
      const auto& replace = std::get<ReplaceText>(step);
      PROLOGUE_RETURN_IF_ERROR(check_text(replace.replacement));
      PROLOGUE_ASSIGN_OR_RETURN(PatternFinder pattern, PatternFinder::create(replace.pattern));
      normalizer.steps_.emplace_back(Replace{std::move(pattern), replace.replacement});
    }
  }
  return normalizer;
}

Result<std::string> Normalizer::normalize(std::string_view text, TextStart start, size_t& work_left) const {
  std::string result(text);
  if (text.empty()) return result;  // no step makes something of nothing
  for (const Step& step : steps_) {
    if (const auto* form = std::get_if<UnicodeForm>(&step)) {
      result = normalized(result, *form);
    } else if (const auto* prepend = std::get_if<PrependText>(&step)) {
      if (!result.empty() && start != TextStart::inside) result.insert(0, prepend->text);
    } else if (const auto* strip = std::get_if<StripWhiteSpace>(&step)) {
      result = std::string(stripped(result, *strip));
    } else {
      const auto& replace = std::get<Replace>(step);
      PROLOGUE_ASSIGN_OR_RETURN(result, replaced(result, replace.pattern, replace.replacement, std::min(kMaxBytes, work_left)));
    }
    if (result.size() > kMaxBytes) {
      return resource_exhausted("the normalizer makes a text of ", text.size(), " bytes longer than ", kMaxBytes, " bytes");
    }
    if (result.size() >= work_left) {
      return resource_exhausted("the normalizer's ", steps_.size(),
                                " steps write too much: its work must be proportional to the length "
                                "of the text");
    }
    work_left -= result.size() + 1;
  }
  return result;
}

}  // namespace prologue
