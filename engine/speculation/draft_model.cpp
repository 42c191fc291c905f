#include <prologue/engine/speculation/draft_model.h>

#include <algorithm>
#include <array>
#include <utility>

#include <prologue/engine/base/printable.h>
#include <prologue/engine/model/load_model.h>
#include <prologue/engine/tokenizer/read_tokenizer.h>
#include <prologue/kernels/base/out_of_memory.h>

namespace prologue {

namespace {

// A sequence has so many new tokens, at most, if all its drafts were accepted: the last draft, and the token after it. All have rows of logits
// in the step that makes the first draft, since such steps are captured.
constexpr int64_t kFewTokens = 2;

}  // namespace

Result<std::unique_ptr<DraftModel>> DraftModel::load(const DraftModelOptions& options, const Tokenizer& tokenizer,
                                                     const Execution& execution) {
  return catch_out_of_memory([&]() -> Result<std::unique_ptr<DraftModel>> {
    std::unique_ptr<DraftModel> draft(new DraftModel(options, execution));
    PROLOGUE_ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> checkpoint, Checkpoint::open(options.path));
    PROLOGUE_ASSIGN_OR_RETURN(TokenizerData data, read_tokenizer(*checkpoint));
    PROLOGUE_ASSIGN_OR_RETURN(const Tokenizer own, Tokenizer::create(std::move(data)));
    PROLOGUE_RETURN_IF_ERROR(draft->check_tokens(own, tokenizer));
    ModelOptions choices;
    choices.keep_quantized = options.keep_quantized;
    PROLOGUE_ASSIGN_OR_RETURN(draft->model_, load_model(*checkpoint, options.dtype, execution, {}, choices));
    PROLOGUE_RETURN_IF_ERROR(synchronize(execution));
    PROLOGUE_ASSIGN_OR_RETURN(draft->groups_, layer_groups(draft->model_));
    return draft;
  });
}

// Tokens that only one of the two has are no error: unknown drafts are left out, and texts with unknown tokens have none.
Status DraftModel::check_tokens(const Tokenizer& own, const Tokenizer& large) const {
  for (int32_t id = 0; id < std::min(own.vocab_size(), large.vocab_size()); ++id) {
    if (own.token_text(id) == large.token_text(id)) continue;
    return invalid_argument(options_.path, ": the draft model's token ", id, " is ", in_quotes(own.token_text(id)),
                            ", the model's is ", in_quotes(large.token_text(id)), ": they must have the same tokens");
  }
  return {};
}

RunnerConfig DraftModel::runner_config(int64_t num_pages) const {
  RunnerConfig config;
  config.page_size = options_.page_size;
  config.num_pages = num_pages;
  config.max_tokens = std::max(options_.max_step_tokens, options_.max_seqs * kFewTokens);
  config.max_seqs = options_.max_seqs;
  config.max_logit_rows = options_.max_seqs * kFewTokens;
  config.capture = options_.capture;
  return config;
}

int64_t DraftModel::page_bytes() const {
  const KvStorageConfig storage = storage_config(model_, groups_, runner_config(1));
  int64_t bytes = 0;
  for (int64_t g = 0; g < storage.num_groups(); ++g) bytes += storage.bytes_per_page(g);
  return bytes;
}

Status DraftModel::start(int64_t num_pages) {
  return catch_out_of_memory([&]() -> Status {
    RunnerConfig config = runner_config(num_pages);
    config.max_seq_len =
        std::min({options_.context_length + kMaxDrafts, num_pages * options_.page_size, model_.config.context_length});
    PROLOGUE_ASSIGN_OR_RETURN(runner_, ModelRunner::create(model_, config, execution_));
    if (runner_->rope_sets().has_several()) {
      return unsupported(options_.path, ": a draft model whose rope depends on the length of a sequence is not supported");
    }
    KvCacheConfig cache;
    cache.page_size = options_.page_size;
    for (const int64_t window : groups_.windows) cache.groups.push_back({num_pages, window});
    cache.prefix_reuse = false;
    cache.keep_until_released = true;  // drafts are taken off again
    PROLOGUE_ASSIGN_OR_RETURN(cache_, KvCache::create(cache));
    batch_ = StepBatch(model_.num_position_axes, static_cast<int64_t>(groups_.windows.size()));
    return {};
  });
}

void DraftModel::drop(Sequence& own) {
  if (own.cache_id >= 0) (void)cache_->free(own.cache_id);
  own.cache_id = -1;
  own.tokens.clear();
}

void DraftModel::forget(int64_t id) {
  const auto found = sequences_.find(id);
  if (found == sequences_.end()) return;
  drop(found->second);
  sequences_.erase(found);
}

// Makes room for so many more tokens. If there is none, sequences give theirs back that are not in this call, the longest unused first.
Result<bool> DraftModel::make_room(Sequence& own, int64_t num_tokens) {
  for (;;) {
    const Status status = cache_->append(own.cache_id, num_tokens);
    if (status.ok()) return true;
    if (status.code() != StatusCode::resource_exhausted) return status;
    Sequence* oldest = nullptr;
    for (auto& [id, other] : sequences_) {
      if (other.cache_id < 0 || other.last_call == num_calls_) continue;
      if (oldest == nullptr || other.last_call < oldest->last_call) oldest = &other;
    }
    if (oldest == nullptr) return false;
    drop(*oldest);
  }
}

// Takes off what the cache has and the text has not, and makes room for the tokens that are missing and for all drafts but the last. At least
// the last token is computed. Returns false if there are no drafts for this sequence.
Result<bool> DraftModel::prepare(DraftSequence& sequence, Sequence& own) {
  const auto length = static_cast<int64_t>(sequence.tokens.size());
  if (sequence.max_drafts < 1 || length + sequence.max_drafts > runner_->limits().max_seq_len) return false;
  const auto same = std::mismatch(own.tokens.begin(), own.tokens.end(), sequence.tokens.begin(), sequence.tokens.end()).first;
  const int64_t kept = std::min<int64_t>(same - own.tokens.begin(), length - 1);
  for (int64_t i = kept; i < length; ++i) {
    if (sequence.tokens[static_cast<size_t>(i)] >= model_.config.vocab_size) return false;
  }
  if (own.cache_id >= 0 && !cache_->truncate(own.cache_id, kept).ok()) drop(own);  // a window has moved on
  if (own.cache_id < 0) {
    own.tokens.clear();
    PROLOGUE_ASSIGN_OR_RETURN(own.cache_id, cache_->add_sequence());
  }
  own.tokens.resize(std::min(own.tokens.size(), static_cast<size_t>(kept)));
  PROLOGUE_ASSIGN_OR_RETURN(const bool has_room,
                            make_room(own, length + sequence.max_drafts - 1 - static_cast<int64_t>(own.tokens.size())));
  if (!has_room) drop(own);
  return has_room;
}

Status DraftModel::add_tokens(const Drafted& each, const int32_t* tokens, int64_t first, int64_t count, int64_t num_rows) {
  std::array<const std::vector<int32_t>*, kMaxLayerGroups> pages = {};
  for (int64_t g = 0; g < cache_->num_groups(); ++g) {
    PROLOGUE_ASSIGN_OR_RETURN(pages[static_cast<size_t>(g)], cache_->pages(each.own->cache_id, g));
  }
  batch_.add_sequence_of_groups(tokens, count, first, pages.data(), options_.page_size, num_rows);
  return {};
}

// Computes K and V of all tokens that are missing but the last few: prompts, at the first call for a sequence.
Status DraftModel::read_prompts(std::vector<Drafted>& drafted) {
  const auto missing = [](const Drafted& each) {
    return static_cast<int64_t>(each.sequence->tokens.size() - each.own->tokens.size());
  };
  for (;;) {
    batch_.clear();
    int64_t budget = options_.max_step_tokens;
    for (Drafted& each : drafted) {
      const int64_t count = std::min(budget, missing(each) - 1);
      if (missing(each) <= kFewTokens || count < 1) continue;
      const auto first = static_cast<int64_t>(each.own->tokens.size());
      const int32_t* const tokens = each.sequence->tokens.data() + first;
      PROLOGUE_RETURN_IF_ERROR(add_tokens(each, tokens, first, count, 0));
      each.own->tokens.insert(each.own->tokens.end(), tokens, tokens + count);
      budget -= count;
    }
    if (batch_.num_tokens() == 0) return {};
    PROLOGUE_RETURN_IF_ERROR(runner_->enqueue(batch_));
    PROLOGUE_RETURN_IF_ERROR(runner_->read().status());
  }
}

// Reads the oldest step, whose sampled tokens are the next drafts.
Status DraftModel::take_drafts(std::vector<Drafted>& drafted) {
  PROLOGUE_ASSIGN_OR_RETURN(const StepResults results, runner_->read());
  for (Drafted& each : drafted) each.sequence->drafts.push_back(results.tokens[static_cast<size_t>(each.row)]);
  return {};
}

// The first step computes the last tokens of each sequence, and samples the first draft. Each further step computes a draft and samples the
// next one; the host reads them one step later.
Status DraftModel::draft(std::vector<Drafted>& drafted) {
  batch_.clear();
  int64_t max_drafts = 0, max_seq_len = 0;
  for (Drafted& each : drafted) {
    const auto first = static_cast<int64_t>(each.own->tokens.size());
    const auto count = static_cast<int64_t>(each.sequence->tokens.size()) - first;
    PROLOGUE_RETURN_IF_ERROR(add_tokens(each, each.sequence->tokens.data() + first, first, count, count));
    each.row = batch_.num_logit_rows() - 1;
    batch_.set_sampling(each.row, each.sequence->sampling);
    max_drafts = std::max(max_drafts, each.sequence->max_drafts);
  }
  PROLOGUE_RETURN_IF_ERROR(runner_->enqueue(batch_));
  if (max_drafts > 1) {
    batch_.clear();
    for (size_t i = 0; i < drafted.size(); ++i) {
      const Drafted& each = drafted[i];
      const auto length = static_cast<int64_t>(each.sequence->tokens.size());
      constexpr int32_t kUnknown = 0;
      PROLOGUE_RETURN_IF_ERROR(add_tokens(each, &kUnknown, length, 1, 1));
      batch_.set_token_from(static_cast<int64_t>(i), static_cast<int32_t>(each.row));
      SamplingRow row = each.sequence->sampling;
      ++row.position;
      batch_.set_sampling(static_cast<int64_t>(i), row);
      max_seq_len = std::max(max_seq_len, length + 1);
    }
    PROLOGUE_RETURN_IF_ERROR(runner_->enqueue(batch_));
  }
  PROLOGUE_RETURN_IF_ERROR(take_drafts(drafted));
  for (size_t i = 0; i < drafted.size(); ++i) drafted[i].row = static_cast<int64_t>(i);
  for (int64_t n = 2; n <= max_drafts; ++n) {
    if (n < max_drafts) PROLOGUE_RETURN_IF_ERROR(runner_->enqueue_next(++max_seq_len));
    PROLOGUE_RETURN_IF_ERROR(take_drafts(drafted));
  }
  return {};
}

Status DraftModel::propose(std::span<DraftSequence> sequences) {
  const Status status = catch_out_of_memory([&]() -> Status {
    ++num_calls_;
    std::vector<Drafted> drafted;
    int64_t max_drafts = 0;
    for (DraftSequence& sequence : sequences) {
      max_drafts = std::max(max_drafts, sequence.max_drafts);
      sequences_[sequence.id].last_call = num_calls_;
    }
    for (DraftSequence& sequence : sequences) {
      if (static_cast<int64_t>(drafted.size()) == options_.max_seqs) break;
      const int64_t wanted = sequence.max_drafts;
      if (wanted > 0) sequence.max_drafts = max_drafts;  // all of a step have as many; the others are cut off
      Sequence& own = sequences_[sequence.id];
      PROLOGUE_ASSIGN_OR_RETURN(const bool has_drafts, prepare(sequence, own));
      sequence.max_drafts = wanted;
      if (has_drafts) drafted.push_back({&sequence, &own});
    }
    if (drafted.empty()) return {};
    PROLOGUE_RETURN_IF_ERROR(read_prompts(drafted));
    PROLOGUE_RETURN_IF_ERROR(draft(drafted));
    for (Drafted& each : drafted) {
      std::vector<int32_t>& drafts = each.sequence->drafts;
      each.own->tokens.assign(each.sequence->tokens.begin(), each.sequence->tokens.end());
      each.own->tokens.insert(each.own->tokens.end(), drafts.begin(), drafts.end() - 1);
      drafts.resize(static_cast<size_t>(each.sequence->max_drafts));
      const auto unknown = [&](int32_t token) { return token >= options_.vocab_size; };
      drafts.erase(std::find_if(drafts.begin(), drafts.end(), unknown), drafts.end());
      (void)cache_->release_out_of_window(each.own->cache_id, static_cast<int64_t>(each.sequence->tokens.size()) - 1);
    }
    return {};
  });
  if (!status.ok()) {
    while (runner_->num_enqueued() > 0) (void)runner_->read();
    for (auto& [id, own] : sequences_) drop(own);  // nobody knows what is in the cache
  }
  return status;
}

}  // namespace prologue
