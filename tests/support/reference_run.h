// Runs the prompts of the reference checkpoints with a runner, as the engine does.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <span>
#include <vector>

#include <prologue/engine/model_runner.h>

#include "tests/support/reference_model.h"

namespace prologue::test {

inline constexpr int64_t kReferencePageSize = 16, kReferencePages = 16;
inline constexpr int64_t kReferenceContext = kReferencePageSize * kReferencePages;

inline RunnerConfig reference_runner_config() {
  RunnerConfig config;
  config.page_size = kReferencePageSize;
  config.num_pages = kReferencePages;
  config.max_tokens = 200;
  config.max_logit_rows = 200;
  config.max_seq_len = kReferenceContext;
  return config;
}

// Runner: ModelRunner or ParallelRunner, made with the configuration above. The model and the groups must outlive what is returned.
template <class Runner>
RunPrompt reference_run(const Model& model, std::shared_ptr<Runner> runner, const LayerGroups& groups) {
  const auto set = std::make_shared<RopeSet*>(nullptr);
  return
      [runner, set, &model, &groups](const ReferencePrompt& prompt, int64_t begin, int64_t end, std::span<const int64_t> rows) {
        if (begin == 0) {
          if (*set != nullptr) runner->rope_sets().release(**set);
          const int64_t length = prompt.rope_length > 0 ? prompt.rope_length : static_cast<int64_t>(prompt.ids.size());
          *set = runner->rope_sets().acquire(rope_length_class(model, length), kReferenceContext);
        }
        std::vector<int32_t> pages;  // in an order that is not that of the tokens
        for (int32_t i = 0; i < kReferencePages; ++i) pages.push_back((5 * i + 3) % kReferencePages);
        const auto num_groups = static_cast<int64_t>(groups.windows.size());
        const std::vector<const std::vector<int32_t>*> tables(static_cast<size_t>(num_groups), &pages);
        StepBatch batch(model.num_position_axes, num_groups);
        batch.add_sequence_of_groups(prompt.ids.data() + begin, end - begin, begin, tables.data(), kReferencePageSize, 0);
        for (const int64_t row : rows) batch.add_logit_row(row - begin);
        for (int64_t axis = 0; axis < model.num_position_axes; ++axis) {
          for (int64_t token = begin; token < end; ++token) {
            const auto at = static_cast<size_t>(axis * static_cast<int64_t>(prompt.ids.size()) + token);
            const int64_t position = prompt.positions.empty() ? token : prompt.positions[at];
            batch.set_position(token - begin, axis, static_cast<int32_t>(position + (*set)->first_row));
          }
        }
        std::vector<float> logits;
        const Status enqueued = runner->enqueue(batch);
        EXPECT_TRUE(enqueued.ok()) << enqueued.message();
        if (!enqueued.ok()) return logits;
        if (!rows.empty()) {
          const Status status = runner->read_logits(logits);
          EXPECT_TRUE(status.ok()) << status.message();
        }
        const auto results = runner->read();
        EXPECT_TRUE(results.ok()) << results.status().message();
        if (results.ok()) {
          EXPECT_EQ(results->fault.code, FaultCode::none);
        }
        return logits;
      };
}

}  // namespace prologue::test
