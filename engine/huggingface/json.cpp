#include <prologue/engine/huggingface/json.h>

#include <algorithm>
#include <limits>
#include <span>
#include <utility>

#include <nlohmann/json.hpp>

#include <prologue/engine/base/file_bytes.h>
#include <prologue/engine/base/printable.h>
#include <prologue/kernels/base/out_of_memory.h>

namespace prologue {
namespace {

bool name_less(const JsonMember& a, const JsonMember& b) { return a.name < b.name; }

// Receives the parser's events. (nlohmann's own values allocate in their destructors, which must not fail here.)
class JsonBuilder final : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit JsonBuilder(const std::string& source) : source_(source) {}

  bool null() override { return add({}); }
  bool boolean(bool value) override { return add({value}); }
  bool number_integer(int64_t value) override { return add({value}); }
  bool number_unsigned(uint64_t value) override {
    if (std::in_range<int64_t>(value)) return add({static_cast<int64_t>(value)});
    return add({static_cast<double>(value)});
  }
  bool number_float(double value, const std::string&) override { return add({value}); }
  bool string(std::string& value) override { return add({std::move(value)}); }
  bool binary(nlohmann::json::binary_t&) override { return false; }

  bool start_object(size_t) override { return open(Json{Json::Object{}}); }
  bool start_array(size_t) override { return open(Json{Json::List{}}); }
  bool key(std::string& name) override {
    open_.back().name = std::move(name);
    return true;
  }
  bool end_object() override {
    auto& members = std::get<Json::Object>(open_.back().value.value);
    std::sort(members.begin(), members.end(), name_less);
    const auto same = [](const JsonMember& a, const JsonMember& b) { return a.name == b.name; };
    const auto twice = std::adjacent_find(members.begin(), members.end(), same);
    if (twice == members.end()) return close();
    status_ = data_loss(source_, ": the name ", in_quotes(twice->name), " occurs twice in a JSON object");
    return false;
  }
  bool end_array() override { return close(); }

  bool parse_error(size_t, const std::string&, const nlohmann::json::exception& error) override {
    const std::string_view text = error.what();  // "[json.exception.parse_error.101] parse error at line 1, column 2: ..."
    const size_t prefix = text.find("] ");
    status_ = data_loss(source_, ": this is not valid JSON: ", printable(text.substr(prefix == text.npos ? 0 : prefix + 2), 256));
    return false;
  }

  const Status& status() const { return status_; }
  Json take() { return std::move(root_); }

 private:
  // Describes a list or object that has begun, and in an object the name of the member that comes next.
  struct Open {
    Json value;
    std::string name;
  };

  bool add(Json value) {
    if (++num_values_ > kMaxJsonValues) {
      status_ = unsupported(source_, ": the JSON has more than ", kMaxJsonValues, " values");
      return false;
    }
    if (open_.empty()) {
      root_ = std::move(value);
      return true;
    }
    Open& parent = open_.back();
    if (auto* list = std::get_if<Json::List>(&parent.value.value)) {
      list->push_back(std::move(value));
    } else {
      std::get<Json::Object>(parent.value.value).push_back({std::move(parent.name), std::move(value)});
    }
    return true;
  }
  bool open(Json value) {
    if (open_.size() == kMaxJsonDepth) {
      status_ = data_loss(source_, ": the JSON is nested more than ", kMaxJsonDepth, " levels deep");
      return false;
    }
    open_.push_back({std::move(value), {}});
    return true;
  }
  bool close() {
    Json value = std::move(open_.back().value);
    open_.pop_back();
    return add(std::move(value));
  }

  const std::string& source_;
  std::vector<Open> open_;
  int64_t num_values_ = 0;
  Json root_;
  Status status_;
};

}  // namespace

const Json* Json::find(std::string_view name) const {
  const auto* members = get_if<Object>();
  if (members == nullptr) return nullptr;
  const auto less = [](const JsonMember& member, std::string_view wanted) { return member.name < wanted; };
  const auto found = std::lower_bound(members->begin(), members->end(), name, less);
  return found != members->end() && found->name == name ? &found->value : nullptr;
}

const char* Json::kind() const {
  constexpr const char* kNames[] = {"null", "a boolean", "an integer", "a number", "a string", "a list", "an object"};
  static_assert(std::size(kNames) == std::variant_size_v<decltype(value)>);
  return kNames[value.index()];
}

Result<Json> parse_json(std::string_view text, const std::string& source) {
  return catch_out_of_memory([&]() -> Result<Json> {
    JsonBuilder builder(source);
    const bool complete = nlohmann::json::sax_parse(text.begin(), text.end(), &builder);
    PROLOGUE_RETURN_IF_ERROR(builder.status());
    if (!complete) return data_loss(source, ": this is not valid JSON");
    return builder.take();
  });
}

Result<Json> read_json_file(const std::string& path, uint64_t max_bytes) {
  return catch_out_of_memory([&]() -> Result<Json> {
    const std::string source = printable_path(path);
    PROLOGUE_ASSIGN_OR_RETURN(FileBytes file, FileBytes::open(path));
    if (file.size() > max_bytes) {
      return unsupported(source, ": the file has ", file.size(), " bytes: at most ", max_bytes, " are supported");
    }
    PROLOGUE_RETURN_IF_ERROR(file.read_head(file.size()));
    return parse_json({reinterpret_cast<const char*>(file.head().data()), static_cast<size_t>(file.size())}, source);
  });
}

}  // namespace prologue
