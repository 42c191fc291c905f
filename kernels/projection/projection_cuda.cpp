#include <algorithm>

#include <prologue/kernels/projection/backends.h>
#include <prologue/kernels/projection/instances.h>
#include <prologue/kernels/projection/policy.h>

namespace prologue::cuda {

int64_t most_tokens_of_one_projection() {
  int64_t most = 0;
  for (const auto* way : kOutputWays) most = std::max(most, way->runs_here() ? way->most_tokens : 0);
  return most;
}

std::optional<Launch> choose(const ProjectionParams& params) {
  for (const auto* way : kOutputWays) {
    if (params.packed.num_segments > 0 && !way->reads_packed) continue;
    std::optional<Launch> chosen = way->choose(params);
    if (!chosen) continue;
    chosen->way = way->name;
    return chosen;
  }
  return {};
}

int64_t tokens_of_packed_launch(const ProjectionParams& params) {
  if (params.packed.num_segments == 0) return 0;
  ProjectionParams few = params;
  int64_t most = 0;
  for (const auto* way : kOutputWays) {
    few.num_tokens = way->most_tokens;
    const bool is_few = params.num_tokens <= policy::most_tokens_of_packed_launches(way->most_tokens);
    const bool is_more = way->most_tokens > most && way->most_tokens < params.num_tokens;
    if (way->reads_packed && is_more && is_few && way->choose(few)) most = way->most_tokens;
  }
  return most;
}

Status launch(const Launch& chosen, const Execution& execution) { return chosen.start(chosen, execution.stream); }

std::vector<std::string> projection_ways() {
  std::vector<std::string> names;
  for (const auto* way : kOutputWays) names.emplace_back(way->name);
  return names;
}

std::vector<std::string> projection_instances(std::string_view way, DType dtype) {
  for (const auto* each : kOutputWays) {
    if (way == each->name) return each->instances(dtype);
  }
  return {};
}

std::vector<KernelInstance<ProjectionParams>> instances_of(std::string_view way, const ProjectionParams& params) {
  std::vector<PossibleLaunch<ProjectionParams>> possible;
  for (const auto* each : kOutputWays) {
    if (way == each->name && (params.packed.num_segments == 0 || each->reads_packed)) each->possible(params, possible);
  }
  std::vector<KernelInstance<ProjectionParams>> list;
  for (auto& each : possible) {
    list.push_back({each.name, each.max_tokens, [of = std::move(each.of)](const ProjectionParams& p, CUstream_st* stream) {
                      const std::optional<Launch> l = of(p);
                      return l ? l->start(*l, stream) : unsupported("projection: this kernel cannot do the call");
                    }});
  }
  return list;
}

}  // namespace prologue::cuda
