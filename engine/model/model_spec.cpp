#include <prologue/engine/model/model_spec.h>

namespace prologue {

std::vector<std::string*> ModuleNames::all() {
  return {&embedding,
          &final_norm,
          &lm_head,
          &attention_norm,
          &attention_post_norm,
          &mlp_norm,
          &mlp_post_norm,
          &q,
          &k,
          &v,
          &qkv,
          &attention_output,
          &q_norm,
          &k_norm,
          &gate,
          &up,
          &down,
          &gate_up,
          &router,
          &expert_gate,
          &expert_up,
          &expert_down,
          &experts_gate_up,
          &experts_down,
          &sinks,
          &rope_freqs,
          &rope_short,
          &rope_long};
}

std::string with_number(std::string name, int64_t number, std::string_view mark) {
  for (size_t at = name.find(mark); at != std::string::npos; at = name.find(mark, at))
    name.replace(at, mark.size(), std::to_string(number));
  return name;
}

bool ModelSpec::needs_no(std::string_view tensor) const {
  for (const std::string& pattern : other_modules) {
    const size_t mark = pattern.find("{}");
    if (mark == std::string::npos) {
      if (tensor.rfind(pattern, 0) == 0) return true;
      continue;
    }
    // The number of a layer stands for the mark.
    if (tensor.rfind(pattern.substr(0, mark), 0) != 0) continue;
    size_t end = mark;
    while (end < tensor.size() && tensor[end] >= '0' && tensor[end] <= '9') ++end;
    if (end > mark && tensor.substr(end).rfind(pattern.substr(mark + 2), 0) == 0) return true;
  }
  return false;
}

}  // namespace prologue
