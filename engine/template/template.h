// This file has chat templates: Jinja as `transformers` runs it (a sandboxed environment with trim_blocks, lstrip_blocks, loop controls and
// `generation` blocks). docs/chat-templates.md says what there is and what there is not.
#pragma once

#include <cstddef>
#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <prologue/engine/template/text.h>
#include <prologue/engine/template/value.h>
#include <prologue/kernels/base/status.h>

namespace prologue::jinja {

struct Statement;

// Limits what one rendering may use. A step is a statement or an operation; bytes are those that are written, copied and compared.
struct Limits {
  size_t steps = size_t{5} << 20;
  size_t bytes = size_t{256} << 20;
  size_t output_bytes = size_t{64} << 20;
};

struct RenderOptions {
  std::optional<std::tm> now;  // what strftime_now writes; none: the local time
  Limits limits = {};
};

using Variables = std::vector<std::pair<std::string, Value>>;

// A template is immutable: any number of threads may use it.
class Template {
 public:
  // data_loss, with the line: this is no template. unsupported: it uses what there is not here, such as {% include %}, or is longer than
  // 4 MiB.
  static Result<Template> parse(std::string_view source);

  // Returns what the template writes. invalid_argument, with the line and why: the template raised an exception, or used a value in a way
  // that it does not have. resource_exhausted: a limit.
  Result<Text> render(const Variables& variables, const RenderOptions& options = {}) const;

 private:
  explicit Template(std::vector<Statement> body);
  std::shared_ptr<const std::vector<Statement>> body_;
};

// Returns a JSON text as a value; the names of its objects keep their order. What is in it comes from the caller. data_loss: it is no JSON.
Result<Value> parse_json_value(std::string_view json);

}  // namespace prologue::jinja
