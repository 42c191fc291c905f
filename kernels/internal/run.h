// What layers, the C interface and the engine use of kernels/ beyond its public headers. Nothing above kernels/ includes another internal
// header of it, or names anything in the namespaces cpu and cuda (tests/tree/include_arrows_test.cpp checks both). Internal.
//   validate, run_validated, run_separately    a call in two steps: its checks, once, and its runs
//   KeptLaunch                                 the launch of a projection, kept while its parameters are the same
//   choose_kernel, run_kernel                  the choice of the prologue's kernel, once, and its runs
//   add_regions, RegionChecks                  checks of the arrays of several operations together
//   has_qkv_gemm, most_tokens_of_one_projection, may_begin_beside_attention, tokens_of_rings, waits_with_its_weights
//                                              what a graph or a layer asks before it fuses or overlaps operations
//   check_hadamard_block, given_without_rotation
//                                              rules of an operation that are checked before there is a call
//   equal, visit_values                        whether all members of two structs are equal; the same for each member
//   parallel_for                               loops of the engine on the threads that the CPU kernels use
#pragma once

#include <prologue/kernels/attention_prologue/backends.h>
#include <prologue/kernels/attention_prologue/steps/hadamard.h>
#include <prologue/kernels/base/host/members.h>
#include <prologue/kernels/base/host/parallel.h>
#include <prologue/kernels/base/host/view_checks.h>
#include <prologue/kernels/collective/backends.h>
#include <prologue/kernels/gemm/backends.h>
#include <prologue/kernels/moe/backends.h>
#include <prologue/kernels/paged_attention/backends.h>
#include <prologue/kernels/projection/backends.h>
#include <prologue/kernels/qkv_prologue/backends.h>
#include <prologue/kernels/rotary/backends.h>
#include <prologue/kernels/token_ops/backends.h>
