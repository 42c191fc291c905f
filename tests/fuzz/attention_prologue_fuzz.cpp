// Calls kernels/attention_prologue/attention_prologue.h with any struct, directly or through a plan.
#include "tests/fuzz/prologue_parts.h"

using namespace prologue;
using namespace prologue::fuzz;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Tally tally("attention_prologue");
  Choices choices(data, size);
  MemoryMap map(choices);
  AttentionPrologueParams p;
  HeadGroup groups[kMaxHeadGroups];
  decode_prologue(choices, map, p, false);
  decode_groups(choices, map, p, groups);
  decode_fault_records(choices, map, p);
  if (!map.allocate()) return 0;
  fill_prologue(choices, p);

  const Execution where = execution(choices);
  map.freeze();
  Status status;
  if (choices.chance(4)) {
    Result<AttentionProloguePlan> plan = AttentionProloguePlan::create(p, p.num_tokens, where);
    status = plan.status();
    if (plan.ok()) {
      p.num_tokens = choices.integer(0, p.num_tokens);
      permit_prologue(map, p);
      status = plan->run(p, where);
    }
  } else {
    if (validate(p).ok()) permit_prologue(map, p);
    status = attention_prologue(p, where);
  }
  if (p.num_tokens == 0) map.forgive();
  map.check(status);
  tally.count(status.ok());
  return 0;
}
