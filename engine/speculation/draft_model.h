// A small model that proposes drafts for a larger one with the same tokens. It has a KV cache of its own, and samples its drafts with the
// random numbers that the large model will sample with at the same positions: so where the two agree on what is likely, they mostly choose
// the same token, at any temperature.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include <prologue/engine/model/model.h>
#include <prologue/engine/model_runner.h>
#include <prologue/engine/speculation/proposer.h>
#include <prologue/engine/tokenizer/tokenizer.h>
#include <prologue/kvcache/kv_cache.h>

namespace prologue {

struct DraftModelOptions {
  std::string path;
  DType dtype = DType::unset;  // of activations, and of weights that do not stay quantised
  bool keep_quantized = false;
  int64_t page_size = 16;
  int64_t context_length = 0;   // of the large model's sequences; longer ones than the draft model's own have no drafts
  int64_t max_seqs = 1;         // of a call; further ones have no drafts
  int64_t vocab_size = 0;       // of the large model: drafts are below
  int64_t max_step_tokens = 0;  // of a step of the draft model
  bool capture = true;          // CUDA graphs
};

class DraftModel : public Proposer {
 public:
  // Loads the weights. `tokenizer`: that of the large model, with whose tokens those of the draft model must agree, as far as it has so many.
  // invalid_argument: they do not. Otherwise as load_model.
  static Result<std::unique_ptr<DraftModel>> load(const DraftModelOptions& options, const Tokenizer& tokenizer,
                                                  const Execution& execution);
  // Returns the bytes of a page of all layers.
  int64_t page_bytes() const;
  // Makes the cache, with so many pages for each group of layers, and what a step needs. Called once, before propose(). unsupported: the
  // frequencies of its rope depend on a sequence's length.
  Status start(int64_t num_pages);

  Status propose(std::span<DraftSequence> sequences) override;
  void forget(int64_t id) override;
  bool is_cheap() const override { return false; }

  int64_t weight_bytes() const { return model_.weight_bytes; }

 private:
  struct Sequence {
    SequenceId cache_id = -1;
    std::vector<int32_t> tokens;  // whose K and V are in the cache
    int64_t last_call = 0;
  };
  // A sequence of a call that gets drafts.
  struct Drafted {
    DraftSequence* sequence = nullptr;
    Sequence* own = nullptr;
    int64_t row = 0;  // of its next sampled token
  };

  DraftModel(const DraftModelOptions& options, const Execution& execution) : options_(options), execution_(execution) {}
  Status check_tokens(const Tokenizer& own, const Tokenizer& large) const;
  RunnerConfig runner_config(int64_t num_pages) const;
  Result<bool> prepare(DraftSequence& sequence, Sequence& own);
  Result<bool> make_room(Sequence& own, int64_t num_tokens);
  void drop(Sequence& own);
  Status read_prompts(std::vector<Drafted>& drafted);
  Status draft(std::vector<Drafted>& drafted);
  Status add_tokens(const Drafted& each, const int32_t* tokens, int64_t first, int64_t count, int64_t num_rows);
  Status take_drafts(std::vector<Drafted>& drafted);

  DraftModelOptions options_;
  Execution execution_;
  Model model_;
  LayerGroups groups_;
  std::unique_ptr<ModelRunner> runner_;
  std::optional<KvCache> cache_;
  StepBatch batch_;
  std::unordered_map<int64_t, Sequence> sequences_;  // by id
  int64_t num_calls_ = 0;
};

}  // namespace prologue
