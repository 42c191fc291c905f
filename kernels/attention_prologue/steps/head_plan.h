// Describes what happens to the heads of one of q, k, v and the groups, apart from what depends on the token (the rotation, the scale of Q): one
// description for the CPU, for the general CUDA kernel and for the choice of a kernel. A new step of a head has its constants here.
#pragma once

#include <cstdint>

#include <prologue/kernels/attention_prologue/attention_prologue.h>
#include <prologue/kernels/attention_prologue/steps/hadamard.h>
#include <prologue/kernels/base/host_device.h>
#include <prologue/kernels/base/shared/rotation.h>

namespace prologue {

struct HeadPlan {
  int64_t num_heads = 0;  // 0: there are none
  int64_t width = 0;      // channels of a head
  const void* bias = nullptr;
  HeadNorm norm;               // resolved
  float inverse_count = 0.0f;  // of the channels that the norm is over
  int32_t hadamard_block = 0;
  float hadamard_factor = 1.0f;
  float constant = 1.0f;  // that K, V or a group is multiplied by
  HeadActivation activation = HeadActivation::none;
  int32_t rounds = 0;     // to dtype after each step
};

// Says whether a step of the plan changes every channel.
PROLOGUE_HOST_DEVICE inline bool changes(const HeadPlan& plan) {
  return plan.bias != nullptr || plan.norm.placement != NormPlacement::none || plan.hadamard_block != 0 ||
         plan.constant != 1.0f || plan.activation != HeadActivation::none;
}

// Returns what a norm multiplies by.
PROLOGUE_HOST_DEVICE inline float norm_factor(float weight_offset, float weight) {
  return weight_offset == 0.0f ? weight : add_rounded(weight_offset, weight);
}

// Says whether the lean CUDA kernels have all steps of the plan. Their lanes exchange channels within the halves of a head, or the halves.
// (Which norms they have is in prologue_choice.cpp.)
inline bool lean_kernels_have(const HeadPlan& plan) {
  const int64_t block = plan.hadamard_block;
  return plan.constant == 1.0f && (block == 0 || plan.width / 2 % block == 0 || block == plan.width);
}

// num_heads and width must be set.
inline void set_norm(HeadPlan& plan, const HeadNorm& norm) {
  plan.norm = norm;
  plan.inverse_count = 1.0f / static_cast<float>(norm.scope == NormScope::token ? plan.num_heads * plan.width : plan.width);
}

inline void set_hadamard(HeadPlan& plan, int64_t block) {
  plan.hadamard_block = static_cast<int32_t>(block);
  plan.hadamard_factor = hadamard_factor(block);
}

struct HeadPlans {
  HeadPlan q, k, v;
};

// `p` must be resolved.
inline HeadPlans head_plans(const AttentionPrologueParams& p) {
  const auto plan_of = [&](const HeadsView& in, int64_t num_heads, int64_t width, const void* bias, const HeadNorm& norm,
                           float constant) {
    HeadPlan plan;
    plan.num_heads = in.data == nullptr ? 0 : num_heads;
    plan.width = width;
    plan.bias = bias;
    set_norm(plan, norm);
    if (plan.num_heads > 0) plan.constant = constant;
    plan.rounds = p.rounding == Rounding::per_step ? 1 : 0;
    return plan;
  };
  HeadPlans plans = {plan_of(p.q, p.num_q_heads, p.head_dim, p.bias.q, p.q_norm, 1.0f),
                     plan_of(p.k, p.num_kv_heads, p.head_dim, p.bias.k, p.k_norm, p.k_constant),
                     plan_of(p.v, p.num_kv_heads, v_head_dim(p), p.bias.v, p.v_norm, p.v_constant)};
  set_hadamard(plans.q, p.hadamard_block);
  set_hadamard(plans.k, p.hadamard_block);
  set_hadamard(plans.v, p.v_hadamard_block);
  return plans;
}

// `group` must be resolved.
inline HeadPlan head_plan(const HeadGroup& group, Rounding rounding) {
  HeadPlan plan;
  plan.num_heads = group.num_heads;
  plan.width = group.head_dim;
  plan.bias = group.bias;
  set_norm(plan, group.norm);
  set_hadamard(plan, group.hadamard_block);
  plan.constant = group.constant;
  plan.activation = group.activation;
  plan.rounds = rounding == Rounding::per_step ? 1 : 0;
  return plan;
}

}  // namespace prologue
