// Several ranks share a model: they compute what one rank does.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include <prologue/engine/engine.h>
#include <prologue/engine/parallel_runner.h>
#include <prologue/kernels/base/gpu.h>

#include "tests/support/reference_model.h"
#include "tests/support/reference_run.h"
#include "tests/support/tiny_model.h"

namespace prologue {
namespace {

using test::PromptSplit;
using test::ReferenceModel;

Status no_place(Device device, int64_t num_ranks) {
  if (device == Device::cpu) return {};
  const auto count = num_gpus();
  if (!count.ok()) return count.status();
  return *count < num_ranks ? unsupported("there are ", *count, " GPUs") : Status();
}

// ---- The reference checkpoints of every family ----

// Loads a checkpoint as parts of a model, one for each rank.
struct ParallelModel {
  std::unique_ptr<Ranks> ranks;
  std::vector<Model> models;
  std::shared_ptr<ParallelRunner> runner;

  static Result<ParallelModel> load(const std::string& folder, Device device, DType dtype, int64_t num_ranks) {
    ParallelModel model;
    PROLOGUE_ASSIGN_OR_RETURN(model.ranks, Ranks::create(device, num_ranks, static_cast<int32_t>(num_ranks)));
    PROLOGUE_ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> checkpoint, Checkpoint::open(folder));
    PROLOGUE_ASSIGN_OR_RETURN(model.models, load_parts(*checkpoint, folder, dtype, *model.ranks, {}, {}));
    PROLOGUE_ASSIGN_OR_RETURN(model.runner, ParallelRunner::create(*model.ranks, model.models, test::reference_runner_config()));
    return model;
  }
};

struct Case {
  std::string model;
  Device device;
  DType dtype;
  int64_t num_ranks;
};
void PrintTo(const Case& each, std::ostream* out) {
  *out << each.model << " on " << each.num_ranks << " ranks, " << device_name(each.device) << ", " << dtype_name(each.dtype);
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const std::string& name : test::reference_model_names()) {
    for (const int64_t num_ranks : {2, 3, 4}) {
      all.push_back({name, Device::cpu, DType::f32, num_ranks});
      all.push_back({name, Device::cuda, DType::f32, num_ranks});
      all.push_back({name, Device::cuda, DType::bf16, num_ranks});
    }
  }
  return all;
}

class ParallelReferences : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Models, ParallelReferences, ::testing::ValuesIn(cases()), [](const auto& row) {
  return row.param.model + "_" + std::to_string(row.param.num_ranks) + "_" + device_name(row.param.device) + "_" +
         dtype_name(row.param.dtype);
});

TEST_P(ParallelReferences, GiveTheLogitsOfTransformers) {
  const auto& [name, device, dtype, num_ranks] = GetParam();
  if (const Status none = no_place(device, num_ranks); !none.ok()) GTEST_SKIP() << none.message();
  const ReferenceModel reference = test::read_reference_model(name);
  auto model = ParallelModel::load(reference.folder, device, dtype, num_ranks);
  if (!model.ok() && model.status().message().find("cannot be split") != std::string::npos) GTEST_SKIP() << model.status().message();
  ASSERT_TRUE(model.ok()) << model.status().message();
  const test::RunPrompt run = test::reference_run(model->models.front(), model->runner, model->runner->front().groups());
  for (const PromptSplit split : {PromptSplit::whole, PromptSplit::chunks, PromptSplit::tokens}) {
    if (dtype == DType::f32) {
      test::expect_reference_logits(reference, split, run);
    } else {
      test::expect_reference_choices(reference, split, run);
    }
  }
}

// Every family has a number of ranks that its checkpoint can be split among.
TEST(ParallelReferences, EveryFamilyCanBeSplit) {
  for (const std::string& name : test::reference_model_names()) {
    bool can = false;
    std::string messages;
    for (const int64_t num_ranks : {2, 3, 4}) {
      const auto model = ParallelModel::load(test::read_reference_model(name).folder, Device::cpu, DType::f32, num_ranks);
      can = can || model.ok();
      if (!model.ok()) messages += model.status().message() + "\n";
    }
    EXPECT_TRUE(can) << name << ": " << messages;
  }
}

}  // namespace
}  // namespace prologue
