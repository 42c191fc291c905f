// This file has the filters of jinja2, and tojson as `transformers` has it.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <set>

#include <prologue/engine/base/printable.h>
#include <prologue/engine/template/characters.h>
#include <prologue/engine/template/failure.h>
#include <prologue/engine/template/renderer.h>
#include <prologue/engine/tokenizer/unicode.h>

namespace prologue::jinja {
namespace {

using Filter = Value (*)(Renderer&, const Value&, const Arguments&);

// ---- Helpers ----

// Holds what a filter reads as attribute="a.b.0": names and indices. As an integer: one index.
using Path = std::vector<Value>;

Path path_of(Renderer& renderer, const Value& attribute) {
  const Text* text = attribute.text();
  if (text == nullptr) return {attribute};
  Path path;
  for (size_t begin = 0; begin <= text->size();) {
    const size_t dot = std::min(text->bytes().find('.', begin), text->size());
    const Text part = text->part(begin, dot);
    const auto index = parse_integer(part.bytes(), 10);
    const bool is_index = !part.empty() && part.bytes().find_first_not_of("0123456789") == std::string::npos && index;
    path.push_back(is_index ? Value{*index} : renderer.make(part));
    begin = dot + 1;
  }
  return path;
}

Value follow(Renderer& renderer, Value value, const Path& path, const Value* fallback) {
  for (const Value& key : path) {
    value = renderer.item(value, key);
    if (value.is_undefined() && fallback != nullptr) return *fallback;
  }
  return value;
}

// Returns the value that sorting and grouping look at: of an attribute if there is one, in lower case unless case counts.
Value key_of(Renderer& renderer, const Value& item, const Path* path, bool case_sensitive, const Value* fallback = nullptr) {
  Value key = path == nullptr ? item : follow(renderer, item, *path, fallback);
  if (case_sensitive || key.text() == nullptr) return key;
  return renderer.make(change_case(renderer, *key.text(), lower));
}

// Sorts stably, and counts the work.
template <class Key>
std::vector<Value> sorted(Renderer& renderer, const std::vector<Value>& items, bool reverse, const Key& key) {
  std::vector<std::pair<Value, size_t>> keyed;
  for (size_t i = 0; i < items.size(); ++i) keyed.emplace_back(key(items[i]), i);
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
    renderer.step();
    const int order = compare(a.first, b.first, "<", renderer.spend());
    return reverse ? order > 0 : order < 0;
  });
  std::vector<Value> result;
  result.reserve(items.size());
  for (const auto& [unused, i] : keyed) result.push_back(items[i]);
  return result;
}

// Does what text_of does, but markup stays markup.
Text soft_text(Renderer& renderer, const Value& value) {
  Text text = renderer.text_of(value);
  if (value.text() != nullptr && value.text()->is_markup()) text.set_markup();
  return text;
}

Value generator(Renderer& renderer, std::vector<Value> items) {
  return renderer.make_list(std::move(items), Sequence::Type::generator);
}

// ---- Text ----

Value upper_filter(Renderer& renderer, const Value& input, const Arguments& arguments) {
  const Parameters none("upper", arguments, {});
  return renderer.make(change_case(renderer, soft_text(renderer, input), upper));
}

Value lower_filter(Renderer& renderer, const Value& input, const Arguments& arguments) {
  const Parameters none("lower", arguments, {});
  return renderer.make(change_case(renderer, soft_text(renderer, input), lower));
}

Value capitalize(Renderer& renderer, const Value& input, const Arguments& arguments) {
  const Parameters none("capitalize", arguments, {});
  return renderer.make(capitalized(renderer, soft_text(renderer, input)));
}

// This is not str.title(): a word begins after white space, - and an opening bracket.
Value title_filter(Renderer& renderer, const Value& input, const Arguments& arguments) {
  const Parameters none("title", arguments, {});
  const Text text = soft_text(renderer, input);
  Builder result(renderer);
  bool begins_word = true;
  for (size_t at = 0; at < text.size();) {
    const Character c = first_character(std::string_view(text.bytes()).substr(at));
    const bool separates =
        is_space(c.code_point) ||
        (c.code_point < 0x80 && std::string_view("-({[<").find(static_cast<char>(c.code_point)) != std::string_view::npos);
    result.append(begins_word ? upper(c.code_point) : lower(c.code_point), text.from_caller_at(at));
    begins_word = separates;
    at += c.size;
  }
  return renderer.make(result.take());
}

Value trim(Renderer& renderer, const Value& input, const Arguments& arguments) {
  const Parameters parameters("trim", arguments, {"chars"});
  const Value* chars = parameters.find(0);
  const Text* removed = chars == nullptr || chars->is_none() ? nullptr : &parameters.text(0);
  return renderer.make(strip(soft_text(renderer, input), removed, true, true));
}

Value replace_filter(Renderer& renderer, const Value& input, const Arguments& arguments) {
  const Parameters parameters("replace", arguments, {"old", "new", "count"}, 2);
  const Text from = renderer.text_of(parameters.value(0)), to = renderer.text_of(parameters.value(1));
  const Value* count = parameters.find(2);
  const int64_t most = count == nullptr || count->is_none() ? -1 : parameters.integer(2, -1);
  return renderer.make(replace(renderer, renderer.text_of(input), from, to, most));
}

Value string_filter(Renderer& renderer, const Value& input, const Arguments& arguments) {
  const Parameters none("string", arguments, {});
  return renderer.make(soft_text(renderer, input));
}

Value markup(Renderer& renderer, Text text) {
  text.set_markup();
  return renderer.make(std::move(text));
}

Value escape(Renderer& renderer, const Value& input, const Arguments& arguments) {
  const Parameters none("escape", arguments, {});
  if (input.text() != nullptr && input.text()->is_markup()) return input;
  return markup(renderer, html_escaped(renderer, renderer.text_of(input)));
}

Value forceescape(Renderer& renderer, const Value& input, const Arguments& arguments) {
  const Parameters none("forceescape", arguments, {});
  return markup(renderer, html_escaped(renderer, renderer.text_of(input)));
}

Value safe(Renderer& renderer, const Value& input, const Arguments& arguments) {
  const Parameters none("safe", arguments, {});
  return markup(renderer, renderer.text_of(input));
}

Value center(Renderer& renderer, const Value& input, const Arguments& arguments) {
  const Parameters parameters("center", arguments, {"width"});
  const Value text = renderer.make(renderer.text_of(input));
  return call_method(renderer, {text, "center"}, {{Value{parameters.integer(0, 80)}}, {}});
}

Value indent(Renderer& renderer, const Value& input, const Arguments& arguments) {
  const Parameters parameters("indent", arguments, {"width", "first", "blank"});
  const Text& text = to_text(input, "the input of indent");
  Builder space(renderer);
  if (const Value* width = parameters.find(0); width != nullptr && width->text() != nullptr) {
    space.append(*width->text());
  } else {
    space.repeat(Text(" "), parameters.integer(0, 4));
  }
  Text whole = text;
  whole.append("\n", false);  // so that a last newline counts as an empty line
  const std::vector<Text> lines = split_lines(whole, false);
  Builder result(renderer);
  if (parameters.flag(1)) result.append(space.text());
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) result.append("\n");
    if (i > 0 && (parameters.flag(2) || !lines[i].empty())) result.append(space.text());
    result.append(lines[i]);
  }
  return renderer.make(result.take());
}

Value truncate(Renderer& renderer, const Value& input, const Arguments& arguments) {
  const Parameters parameters("truncate", arguments, {"length", "killwords", "end", "leeway"});
  const Text& text = to_text(input, "the input of truncate");
  const Text end = parameters.find(2) == nullptr ? Text("...") : parameters.text(2);
  const Value* given = parameters.find(3);
  const int64_t length = parameters.integer(0, 255);
  const int64_t leeway = given == nullptr || given->is_none() ? 5 : parameters.integer(3, 5);
  const auto end_length = static_cast<int64_t>(end.num_characters());
  if (length < end_length) fail("the length of truncate is ", length, ": it must be at least ", end_length);
  if (leeway < 0) fail("the leeway of truncate is ", leeway, ": it must be at least 0");
  const auto most = static_cast<size_t>(length);
  if (text.num_characters() <= most || text.num_characters() - most <= static_cast<size_t>(leeway)) return input;
  size_t cut = text.position_of(static_cast<size_t>(length - end_length));
  if (!parameters.flag(1)) {
    if (const auto space = find_last(text.bytes(), " ", cut)) cut = *space;
  }
  Builder result(renderer);
  result.append_part(text, 0, cut);
  result.append(end);
  return renderer.make(result.take());
}

Value wordcount(Renderer& renderer, const Value& input, const Arguments& arguments) {
  const Parameters none("wordcount", arguments, {});
  const Text text = renderer.text_of(input);
  int64_t count = 0;
  bool in_word = false;
  for (std::string_view rest = text.bytes(); !rest.empty();) {
    const Character c = first_character(rest);
    const bool is_word = is_alpha(c.code_point) || is_numeric(c.code_point) || c.code_point == '_';
    if (is_word && !in_word) ++count;
    in_word = is_word;
    rest.remove_prefix(c.size);
  }
  return {count};
}

Value striptags(Renderer& renderer, const Value& input, const Arguments& arguments) {
  const Parameters none("striptags", arguments, {});
  const Text text = renderer.text_of(input);
  Builder without(renderer);
  for (size_t at = 0; at < text.size();) {
    const auto tag = find_first(text.bytes(), "<", at);
    const auto end = tag ? find_first(text.bytes(), ">", *tag) : std::nullopt;
    without.append_part(text, at, end ? *tag : text.size());
    at = end ? *end + 1 : text.size();
  }
  const Value words = call_method(renderer, {renderer.make(without.take()), "split"}, {});
  return call_method(renderer, {renderer.make(" "), "join"}, {{words}, {}});
}

Value format(Renderer& renderer, const Value& input, const Arguments& arguments) {
  if (!arguments.values.empty() && !arguments.named.empty()) fail("format takes values or names, not both");
  Value values;
  if (!arguments.named.empty()) {
    Dict dict;
    for (const auto& [name, value] : arguments.named) dict.set(renderer.make(name), value);
    values = make_dict(std::move(dict));
  } else {
    values = renderer.make_list(arguments.values, Sequence::Type::tuple);
  }
  return renderer.make(format_percent(renderer, renderer.text_of(input), values));
}

Value tojson(Renderer& renderer, const Value& input, const Arguments& arguments) {
  return renderer.make(to_json(renderer, input, arguments));
}

Value pprint(Renderer& renderer, const Value& input, const Arguments& arguments) {
  const Parameters none("pprint", arguments, {});
  Text text;
  write_repr(input, text, renderer.spend());
  return renderer.make(std::move(text));
}

// ---- Numbers ----

Value abs_filter(Renderer&, const Value& input, const Arguments& arguments) {
  const Parameters none("abs", arguments, {});
  if (const double* real = input.get_if<double>()) return {std::fabs(*real)};
  const int64_t integer = to_integer(input, "the input of abs");
  if (integer == INT64_MIN) fail("an integer does not fit in 64 bits");
  return {integer < 0 ? -integer : integer};
}

Value int_filter(Renderer&, const Value& input, const Arguments& arguments) {
  const Parameters parameters("int", arguments, {"default", "base"});
  const Value fallback = parameters.find(0) == nullptr ? Value{int64_t{0}} : parameters.value(0);
  std::optional<double> real;
  if (const Text* text = input.text()) {
    if (const auto integer = parse_integer(text->bytes(), parameters.integer(1, 10))) return {*integer};
    real = parse_float(text->bytes());
  } else if (const double* number = input.get_if<double>()) {
    real = *number;
  } else if (input.get_if<int64_t>() != nullptr || input.get_if<bool>() != nullptr) {
    return {to_integer(input, "a number")};
  } else {
    check_defined(input);
  }
  if (!real || !(std::fabs(*real) < 9.2e18)) return fallback;
  return {static_cast<int64_t>(*real)};
}

Value float_filter(Renderer&, const Value& input, const Arguments& arguments) {
  const Parameters parameters("float", arguments, {"default"});
  check_defined(input);
  if (const Text* text = input.text()) {
    if (const auto real = parse_float(text->bytes())) return {*real};
  } else if (input.get_if<double>() != nullptr) {
    return input;
  } else if (input.get_if<int64_t>() != nullptr || input.get_if<bool>() != nullptr) {
    return {static_cast<double>(to_integer(input, "a number"))};
  }
  return parameters.find(0) == nullptr ? Value{0.0} : parameters.value(0);
}

Value round_filter(Renderer&, const Value& input, const Arguments& arguments) {
  const Parameters parameters("round", arguments, {"precision", "method"});
  const std::string method = parameters.find(1) == nullptr ? "common" : parameters.text(1).bytes();
  if (method != "common" && method != "ceil" && method != "floor") fail("the method of round must be common, ceil or floor");
  const int64_t digits = parameters.integer(0, 0);
  if (digits < -300 || digits > 300) fail("the precision of round is ", digits, ": it must be between -300 and 300");
  const double* real = input.get_if<double>();
  if (method == "common") {
    if (real != nullptr) return {round_half_even(*real, digits)};
    const int64_t integer = to_integer(input, "the input of round");
    if (digits >= 0) return {integer};
    return {static_cast<int64_t>(round_half_even(static_cast<double>(integer), digits))};
  }
  const double value = real != nullptr ? *real : static_cast<double>(to_integer(input, "the input of round"));
  const double factor = std::pow(10.0, static_cast<double>(digits));
  return {(method == "ceil" ? std::ceil(value * factor) : std::floor(value * factor)) / factor};
}

Value sum(Renderer& renderer, const Value& input, const Arguments& arguments) {
  const Parameters parameters("sum", arguments, {"attribute", "start"});
  Value total = parameters.find(1) == nullptr ? Value{int64_t{0}} : parameters.value(1);
  const Value* attribute = parameters.find(0);
  const Path path = attribute == nullptr || attribute->is_none() ? Path() : path_of(renderer, *attribute);
  if (total.text() != nullptr) fail("sum cannot add strings: join does");
  for (const Value& item : renderer.items_of(input)) {
    renderer.step();
    total = renderer.binary("+", total, follow(renderer, item, path, nullptr));
  }
  return total;
}

// ---- Sequences ----

Value length(Renderer& renderer, const Value& input, const Arguments& arguments) {
  const Parameters none("length", arguments, {});
  if (const auto* loop = input.get_if<std::shared_ptr<Loop>>()) return *renderer.loop_attribute(*loop, "length");
  const auto count = renderer.length_of(input);
  if (!count) fail("a value of the type '", type_name(input), "' has no length");
  return {static_cast<int64_t>(*count)};
}

Value first(Renderer& renderer, const Value& input, const Arguments& arguments) {
  const Parameters none("first", arguments, {});
  if (Sequence* sequence = input.sequence(); sequence != nullptr && sequence->type == Sequence::Type::generator) {
    if (sequence->next < sequence->items.size()) return sequence->items[sequence->next++];
    return make_undefined("No first item, sequence was empty.");
  }
  if (const Text* text = input.text(); text != nullptr && !text->empty()) return renderer.item(input, {int64_t{0}});
  const std::vector<Value> items = renderer.items_of(input);
  return items.empty() ? make_undefined("No first item, sequence was empty.") : items.front();
}

Value last(Renderer& renderer, const Value& input, const Arguments& arguments) {
  const Parameters none("last", arguments, {});
  if (const Sequence* sequence = input.sequence(); sequence != nullptr && sequence->type == Sequence::Type::generator) {
    fail("'generator' object is not reversible: the filter list makes a list of it");
  }
  if (const Text* text = input.text(); text != nullptr && !text->empty()) return renderer.item(input, {int64_t{-1}});
  const std::vector<Value> items = renderer.items_of(input);
  return items.empty() ? make_undefined("No last item, sequence was empty.") : items.back();
}

Value list(Renderer& renderer, const Value& input, const Arguments& arguments) {
  const Parameters none("list", arguments, {});
  return renderer.make_list(renderer.items_of(input));
}

Value reverse(Renderer& renderer, const Value& input, const Arguments& arguments) {
  const Parameters none("reverse", arguments, {});
  if (input.text() != nullptr) return renderer.slice(input, {None{}}, {None{}}, {int64_t{-1}});
  std::vector<Value> items = renderer.items_of(input);
  std::reverse(items.begin(), items.end());
  const bool has_order = input.sequence() == nullptr || input.sequence()->type != Sequence::Type::generator;
  return renderer.make_list(std::move(items), has_order ? Sequence::Type::generator : Sequence::Type::list);
}

Value join(Renderer& renderer, const Value& input, const Arguments& arguments) {
  const Parameters parameters("join", arguments, {"d", "attribute"});
  const Text separator = parameters.find(0) == nullptr ? Text() : renderer.text_of(parameters.value(0));
  const Value* attribute = parameters.find(1);
  const Path path = attribute == nullptr || attribute->is_none() ? Path() : path_of(renderer, *attribute);
  Builder result(renderer);
  bool is_first = true;
  for (const Value& item : renderer.items_of(input)) {
    renderer.step();
    if (!is_first) result.append(separator);
    is_first = false;
    result.append(renderer.text_of(follow(renderer, item, path, nullptr)));
  }
  return renderer.make(result.take());
}

Value batch(Renderer& renderer, const Value& input, const Arguments& arguments) {
  const Parameters parameters("batch", arguments, {"linecount", "fill_with"}, 1);
  const auto count = static_cast<size_t>(std::max<int64_t>(parameters.integer(0, 1), 1));
  std::vector<Value> batches, items;
  for (Value& item : renderer.items_of(input)) {
    if (items.size() == count) batches.push_back(renderer.make_list(std::exchange(items, {})));
    items.push_back(std::move(item));
  }
  if (!items.empty()) {
    const Value* fill = parameters.find(1);
    while (fill != nullptr && !fill->is_none() && items.size() < count) {
      renderer.step();
      items.push_back(*fill);
    }
    batches.push_back(renderer.make_list(std::move(items)));
  }
  return generator(renderer, std::move(batches));
}

Value slice(Renderer& renderer, const Value& input, const Arguments& arguments) {
  const Parameters parameters("slice", arguments, {"slices", "fill_with"}, 1);
  const std::vector<Value> items = renderer.items_of(input);
  const int64_t count = parameters.integer(0, 1);
  if (count == 0) fail("division by zero");
  std::vector<Value> slices;
  const size_t most = count < 0 ? 0 : static_cast<size_t>(count);
  size_t begin = 0;
  for (size_t i = 0; i < most; ++i) {
    renderer.step();
    const bool has_more = i < items.size() % most;
    const size_t end = begin + items.size() / most + (has_more ? 1 : 0);
    std::vector<Value> part(items.begin() + static_cast<std::ptrdiff_t>(begin), items.begin() + static_cast<std::ptrdiff_t>(end));
    const Value* fill = parameters.find(1);
    if (fill != nullptr && !fill->is_none() && !has_more) part.push_back(*fill);
    slices.push_back(renderer.make_list(std::move(part)));
    begin = end;
  }
  return generator(renderer, std::move(slices));
}

Value sort(Renderer& renderer, const Value& input, const Arguments& arguments) {
  const Parameters parameters("sort", arguments, {"reverse", "case_sensitive", "attribute"});
  std::vector<Path> paths;
  if (const Value* attribute = parameters.find(2); attribute != nullptr && !attribute->is_none()) {
    if (attribute->text() == nullptr) {
      paths.push_back({*attribute});
    } else {
      const Value names = call_method(renderer, {*attribute, "split"}, {{renderer.make(",")}, {}});
      for (const Value& name : renderer.items_of(names)) paths.push_back(path_of(renderer, name));
    }
  }
  return renderer.make_list(sorted(renderer, renderer.items_of(input), parameters.flag(0), [&](const Value& item) {
    if (paths.size() <= 1) return key_of(renderer, item, paths.empty() ? nullptr : &paths[0], parameters.flag(1));
    std::vector<Value> keys;
    for (const Path& path : paths) keys.push_back(key_of(renderer, item, &path, parameters.flag(1)));
    return renderer.make_list(std::move(keys));
  }));
}

Value dictsort(Renderer& renderer, const Value& input, const Arguments& arguments) {
  const Parameters parameters("dictsort", arguments, {"case_sensitive", "by", "reverse"});
  const std::string by = parameters.find(1) == nullptr ? "key" : parameters.text(1).bytes();
  if (by != "key" && by != "value") fail("dictsort sorts by 'key' or 'value'");
  check_defined(input);
  const Dict* dict = input.dict();
  if (dict == nullptr) fail("the input of dictsort is of the type '", type_name(input), "': it must be a dict");
  std::vector<Value> pairs;
  for (const Dict::Entry& entry : dict->entries()) pairs.push_back(renderer.make_tuple(entry.key, entry.value));
  return renderer.make_list(sorted(renderer, pairs, parameters.flag(2), [&](const Value& pair) {
    return key_of(renderer, pair.sequence()->items[by == "key" ? 0 : 1], nullptr, parameters.flag(0));
  }));
}

Value unique(Renderer& renderer, const Value& input, const Arguments& arguments) {
  const Parameters parameters("unique", arguments, {"case_sensitive", "attribute"});
  const Value* attribute = parameters.find(1);
  const bool has_path = attribute != nullptr && !attribute->is_none();
  const Path path = has_path ? path_of(renderer, *attribute) : Path();
  std::set<std::string> seen;
  std::vector<Value> items;
  for (Value& item : renderer.items_of(input)) {
    renderer.step();
    if (seen.insert(hash_key(key_of(renderer, item, has_path ? &path : nullptr, parameters.flag(0)))).second) {
      items.push_back(std::move(item));
    }
  }
  return generator(renderer, std::move(items));
}

Value smallest(Renderer& renderer, const char* name, const Value& input, const Arguments& arguments, bool largest) {
  const Parameters parameters(name, arguments, {"case_sensitive", "attribute"});
  const Value* attribute = parameters.find(1);
  const bool has_path = attribute != nullptr && !attribute->is_none();
  const Path path = has_path ? path_of(renderer, *attribute) : Path();
  std::optional<Value> best, best_key;
  for (const Value& item : renderer.items_of(input)) {
    renderer.step();
    Value key = key_of(renderer, item, has_path ? &path : nullptr, parameters.flag(0));
    if (best_key) {
      const int order = compare(key, *best_key, largest ? ">" : "<", renderer.spend());
      if (largest ? order <= 0 : order >= 0) continue;
    }
    best = item;
    best_key = std::move(key);
  }
  return best ? *best : make_undefined("No aggregated item, sequence was empty.");
}
Value min_filter(Renderer& renderer, const Value& input, const Arguments& arguments) {
  return smallest(renderer, "min", input, arguments, false);
}
Value max_filter(Renderer& renderer, const Value& input, const Arguments& arguments) {
  return smallest(renderer, "max", input, arguments, true);
}

Value groupby(Renderer& renderer, const Value& input, const Arguments& arguments) {
  const Parameters parameters("groupby", arguments, {"attribute", "default", "case_sensitive"}, 1);
  const Path path = path_of(renderer, parameters.value(0));
  const Value* fallback = parameters.find(1) == nullptr || parameters.find(1)->is_none() ? nullptr : parameters.find(1);
  const auto key = [&](const Value& item) { return key_of(renderer, item, &path, parameters.flag(2), fallback); };
  const std::vector<Value> items = sorted(renderer, renderer.items_of(input), false, key);
  std::vector<Value> groups;
  for (size_t begin = 0, end = 0; begin < items.size(); begin = end) {
    const Value group_key = key(items[begin]);
    std::vector<Value> members;
    for (; end < items.size() && equals(key(items[end]), group_key, renderer.spend()); ++end) members.push_back(items[end]);
    Value group = renderer.make_tuple(follow(renderer, items[begin], path, fallback), renderer.make_list(std::move(members)));
    group.sequence()->is_group = true;
    groups.push_back(std::move(group));
  }
  return renderer.make_list(std::move(groups));
}

Value items_filter(Renderer& renderer, const Value& input, const Arguments& arguments) {
  const Parameters none("items", arguments, {});
  if (input.is_undefined()) return generator(renderer, {});
  const Dict* dict = input.dict();
  if (dict == nullptr) fail("items needs a mapping, not a value of the type '", type_name(input), "'");
  std::vector<Value> pairs;
  for (const Dict::Entry& entry : dict->entries()) pairs.push_back(renderer.make_tuple(entry.key, entry.value));
  return generator(renderer, std::move(pairs));
}

Value map(Renderer& renderer, const Value& input, const Arguments& arguments) {
  std::vector<Value> result;
  if (!is_true(input)) return generator(renderer, {});
  if (arguments.values.empty()) {
    const Parameters parameters("map", arguments, {"attribute", "default"});
    if (parameters.find(0) == nullptr) fail("map needs the name of a filter, or attribute=");
    const Path path = path_of(renderer, parameters.value(0));
    const Value* fallback = parameters.find(1) == nullptr || parameters.find(1)->is_none() ? nullptr : parameters.find(1);
    for (const Value& item : renderer.items_of(input)) {
      renderer.step();
      result.push_back(follow(renderer, item, path, fallback));
    }
    return generator(renderer, std::move(result));
  }
  const std::string name = to_text(arguments.values[0], "the filter of map").bytes();
  const Arguments rest{{arguments.values.begin() + 1, arguments.values.end()}, arguments.named};
  for (const Value& item : renderer.items_of(input)) result.push_back(renderer.filter(name, item, rest));
  return generator(renderer, std::move(result));
}

Value select_items(Renderer& renderer, const char* name, const Value& input, const Arguments& arguments, bool wanted,
                   bool of_attribute) {
  if (!is_true(input)) return generator(renderer, {});
  size_t used = 0;
  Path path;
  if (of_attribute) {
    if (arguments.values.empty()) fail(name, " needs the name of an attribute");
    path = path_of(renderer, arguments.values[used++]);
  }
  const Text* test = used < arguments.values.size() ? &to_text(arguments.values[used++], "the name of a test") : nullptr;
  const Arguments rest{{arguments.values.begin() + static_cast<std::ptrdiff_t>(used), arguments.values.end()}, arguments.named};
  std::vector<Value> result;
  for (const Value& item : renderer.items_of(input)) {
    renderer.step();
    const Value value = follow(renderer, item, path, nullptr);
    const bool holds = test == nullptr ? is_true(value) : renderer.test(test->bytes(), value, rest);
    if (holds == wanted) result.push_back(item);
  }
  return generator(renderer, std::move(result));
}
Value select(Renderer& renderer, const Value& input, const Arguments& arguments) {
  return select_items(renderer, "select", input, arguments, true, false);
}
Value reject(Renderer& renderer, const Value& input, const Arguments& arguments) {
  return select_items(renderer, "reject", input, arguments, false, false);
}
Value selectattr(Renderer& renderer, const Value& input, const Arguments& arguments) {
  return select_items(renderer, "selectattr", input, arguments, true, true);
}
Value rejectattr(Renderer& renderer, const Value& input, const Arguments& arguments) {
  return select_items(renderer, "rejectattr", input, arguments, false, true);
}

// ---- Others ----

Value default_filter(Renderer& renderer, const Value& input, const Arguments& arguments) {
  const Parameters parameters("default", arguments, {"default_value", "boolean"});
  if (!input.is_undefined() && !(parameters.flag(1) && !is_true(input))) return input;
  return parameters.find(0) == nullptr ? renderer.make("") : parameters.value(0);
}

Value attr(Renderer& renderer, const Value& input, const Arguments& arguments) {
  const Parameters parameters("attr", arguments, {"name"}, 1);
  const std::string& name = parameters.text(0).bytes();
  if (input.dict() != nullptr && find_method(input, name) == MethodKind::none) {
    return make_undefined(str_cat("'dict object' has no attribute ", in_quotes(name, 40)));
  }
  return renderer.attribute(input, name);
}

struct NamedFilter {
  std::string_view name;
  Filter run;
};

constexpr std::array kFilters = {
    NamedFilter{"abs", abs_filter},
    NamedFilter{"attr", attr},
    NamedFilter{"batch", batch},
    NamedFilter{"capitalize", capitalize},
    NamedFilter{"center", center},
    NamedFilter{"count", length},
    NamedFilter{"d", default_filter},
    NamedFilter{"default", default_filter},
    NamedFilter{"dictsort", dictsort},
    NamedFilter{"e", escape},
    NamedFilter{"escape", escape},
    NamedFilter{"first", first},
    NamedFilter{"float", float_filter},
    NamedFilter{"forceescape", forceescape},
    NamedFilter{"format", format},
    NamedFilter{"groupby", groupby},
    NamedFilter{"indent", indent},
    NamedFilter{"int", int_filter},
    NamedFilter{"items", items_filter},
    NamedFilter{"join", join},
    NamedFilter{"last", last},
    NamedFilter{"length", length},
    NamedFilter{"list", list},
    NamedFilter{"lower", lower_filter},
    NamedFilter{"map", map},
    NamedFilter{"max", max_filter},
    NamedFilter{"min", min_filter},
    NamedFilter{"pprint", pprint},
    NamedFilter{"reject", reject},
    NamedFilter{"rejectattr", rejectattr},
    NamedFilter{"replace", replace_filter},
    NamedFilter{"reverse", reverse},
    NamedFilter{"round", round_filter},
    NamedFilter{"safe", safe},
    NamedFilter{"select", select},
    NamedFilter{"selectattr", selectattr},
    NamedFilter{"slice", slice},
    NamedFilter{"sort", sort},
    NamedFilter{"string", string_filter},
    NamedFilter{"striptags", striptags},
    NamedFilter{"sum", sum},
    NamedFilter{"title", title_filter},
    NamedFilter{"tojson", tojson},
    NamedFilter{"trim", trim},
    NamedFilter{"truncate", truncate},
    NamedFilter{"unique", unique},
    NamedFilter{"upper", upper_filter},
    NamedFilter{"wordcount", wordcount},
};

const NamedFilter* find_filter(std::string_view name) {
  const auto found = std::find_if(kFilters.begin(), kFilters.end(), [&](const NamedFilter& f) { return f.name == name; });
  return found == kFilters.end() ? nullptr : &*found;
}

}  // namespace

Text html_escaped(Renderer& renderer, const Text& text) {
  Builder result(renderer);
  size_t copied = 0;
  for (size_t at = 0; at < text.size(); ++at) {
    const char byte = text.bytes()[at];
    const char* escaped = byte == '&'    ? "&amp;"
                          : byte == '<'  ? "&lt;"
                          : byte == '>'  ? "&gt;"
                          : byte == '"'  ? "&#34;"
                          : byte == '\'' ? "&#39;"
                                         : nullptr;
    if (escaped == nullptr) continue;
    result.append_part(text, copied, at);
    result.append(escaped, text.from_caller_at(at));
    copied = at + 1;
  }
  result.append_part(text, copied, text.size());
  return result.take();
}

bool is_filter(std::string_view name) { return find_filter(name) != nullptr; }

Value apply_filter(Renderer& renderer, std::string_view name, const Value& input, const Arguments& arguments) {
  const NamedFilter* found = find_filter(name);
  if (found == nullptr) fail_as(StatusCode::unsupported, "there is no filter ", in_quotes(name, 40));
  return found->run(renderer, input, arguments);
}

}  // namespace prologue::jinja
