#include <prologue/engine/model/load_model.h>

#include <unordered_set>

#include <prologue/engine/base/printable.h>
#include <prologue/engine/model/families/families.h>
#include <prologue/engine/model/sampling_defaults.h>
#include <prologue/kernels/base/out_of_memory.h>

namespace prologue {

namespace {

std::string names_of(Checkpoint::Format format) {
  std::string list;
  for (const Family& family : families()) {
    if (family.format == format) list += (list.empty() ? "" : ", ") + std::string(family.name);
  }
  return list;
}

// Finds the language model of a model that also takes images: it has a name of its own, beside parts that are not needed.
void find_language_model(const Checkpoint& checkpoint, ModelSpec& spec) {
  if (!checkpoint.has("vision_config")) return;
  spec.other_modules.insert(spec.other_modules.end(), {"visual.", "model.visual.", "vision_tower.", "model.vision_tower.",
                                                       "multi_modal_projector.", "model.multi_modal_projector."});
  for (const std::string prefix : {"model.language_model.", "language_model.model."}) {
    if (checkpoint.has_tensor(spec.names.embedding + ".weight")) return;
    ModuleNames names = spec.names;
    for (std::string* name : names.all()) {
      if (name->rfind("model.", 0) == 0) name->replace(0, 6, prefix);
    }
    if (checkpoint.has_tensor(names.embedding + ".weight")) spec.names = names;
  }
  if (checkpoint.has_tensor("language_model.lm_head.weight")) spec.names.lm_head = "language_model.lm_head";
}

Result<ModelSpec> read_spec(const Checkpoint& checkpoint) {
  PROLOGUE_ASSIGN_OR_RETURN(const std::string name, checkpoint.architecture());
  for (const Family& family : families()) {
    if (family.format != checkpoint.format() || name != family.name) continue;
    ConfigReader config(checkpoint, checkpoint.format() == Checkpoint::Format::gguf ? name + "." : std::string());
    ModelSpec spec;
    spec.config.architecture = name;
    family.read(config, spec);
    PROLOGUE_RETURN_IF_ERROR(config.status());
    find_language_model(checkpoint, spec);
    // transformers takes sequences of any length.
    if (checkpoint.format() == Checkpoint::Format::huggingface) spec.config.max_context_length = INT32_MAX;
    if (checkpoint.format() == Checkpoint::Format::gguf && checkpoint.has("general.name")) {
      PROLOGUE_ASSIGN_OR_RETURN(spec.config.name, checkpoint.text("general.name"));
    }
    if (spec.config.name.empty()) spec.config.name = "unnamed";
    return spec;
  }
  return unsupported(checkpoint.path(), ": the architecture is ", in_quotes(name), ": supported are ",
                     names_of(checkpoint.format()));
}

// These are constants that older versions of transformers stored beside the weights and that no version reads: what their names mean is the
// same in all families. The causal mask of a layer's attention is a tensor [1, 1, n, n], so a bias of that name is none.
bool is_constant(const TensorInfo& tensor) {
  const std::string_view name = tensor.name;
  if (name.find("rotary_emb.") != name.npos || name.ends_with("position_ids")) return true;
  for (const std::string_view attention : {".attn.", ".attention.", ".self_attn."}) {
    const size_t at = name.rfind(attention);
    if (at == name.npos) continue;
    const std::string_view buffer = name.substr(at + attention.size());
    if (buffer == "masked_bias" || (buffer == "bias" && tensor.shape.size() == 4)) return true;
  }
  return false;
}

// Checks that nothing that belongs to the model is left unread.
Status check_all_used(const Checkpoint& checkpoint, const ModelSpec& spec) {
  const std::string& name = spec.config.architecture;
  for (const std::string& prefix : {name + ".", std::string("split."), std::string("adapter.")}) {
    for (const std::string& key : checkpoint.unused_keys(prefix)) {
      return unsupported(checkpoint.path(), ": the key ", printable(key), " changes the result, and the ", name,
                         " loader does not know it");
    }
  }
  std::unordered_set<std::string_view> constants;
  for (const TensorInfo& tensor : checkpoint.tensors()) {
    if (is_constant(tensor)) constants.insert(tensor.name);
  }
  std::string unknown;
  int64_t count = 0;
  for (const std::string& tensor : checkpoint.unused_tensors()) {
    if (spec.needs_no(tensor) || constants.count(tensor) != 0) continue;
    unknown += (count++ < 20 ? (count > 1 ? ", " : "") + printable(tensor) : std::string());
  }
  if (count == 0) return {};
  return unsupported(checkpoint.path(), ": the ", name, " loader does not know these tensors of the model: ", unknown,
                     count > 20 ? str_cat(" and ", count - 20, " more") : std::string());
}

Result<Model> load(const Checkpoint& checkpoint, DType dtype, const Execution& execution, std::function<void(double)> progress,
                   const ModelOptions& options) {
  PROLOGUE_ASSIGN_OR_RETURN(const ModelSpec spec, read_spec(checkpoint));
  WeightLoader loader(checkpoint, dtype, execution, std::move(progress), options.keep_quantized);
  loader.set_stop(options.stop);
  PROLOGUE_ASSIGN_OR_RETURN(Model model, build_model(spec, options, loader));
  model.quantizes_activations = checkpoint.quantizes_activations();
  model.sampling = read_sampling_defaults(checkpoint, model.warnings);
  PROLOGUE_RETURN_IF_ERROR(check_all_used(checkpoint, spec));
  PROLOGUE_RETURN_IF_ERROR(checkpoint.check_unchanged());
  return model;
}

}  // namespace

Result<ModelSpec> read_model_spec(const Checkpoint& checkpoint) {
  return catch_out_of_memory([&] { return read_spec(checkpoint); });
}

Result<Model> load_model(const Checkpoint& checkpoint, DType dtype, const Execution& execution,
                         std::function<void(double)> progress, const ModelOptions& options) {
  return catch_out_of_memory([&] { return load(checkpoint, dtype, execution, std::move(progress), options); });
}

}  // namespace prologue
