#include "tests/oracle/rotary.h"

#include <cmath>

namespace prologue::test::oracle {
namespace {

struct RotaryStand {
  bool padding = false;
  int64_t fault = 0;
  bool rotated = true;
  std::vector<int64_t> positions;
};

RotaryStand stand_of(const RotaryInput& in, int64_t b, int64_t s);

RotaryStand stand_of(const RotaryInput& in, int64_t b, int64_t s) {
  RotaryStand stand;
  if (in.ids) {
    for (int64_t axis = 0; axis < in.num_axes; ++axis) {
      const int64_t id = in.ids->at(static_cast<size_t>((axis * in.batch + b) * in.seq_len + s));
      stand.positions.push_back(id);
      if (id < 0) stand.padding = true;
    }
  } else {
    int64_t sequence = b;
    long double number = static_cast<long double>(s);
    if (!in.cu_seqlens.empty()) {
      if (s >= in.cu_seqlens.back()) {
        stand.padding = true;
        return stand;
      }
      for (size_t n = 0; n + 1 < in.cu_seqlens.size(); ++n) {
        if (s < in.cu_seqlens[n] || s >= in.cu_seqlens[n + 1]) continue;
        sequence = static_cast<int64_t>(n);
        number = static_cast<long double>(s) - static_cast<long double>(in.cu_seqlens[n]);
      }
    }
    if (in.max_seqlen > 0 && number >= static_cast<long double>(in.max_seqlen)) stand.fault = 5;
    const int64_t extra = in.offsets.empty() ? 0 : in.offsets.at(static_cast<size_t>(sequence));
    const long double sum = number + static_cast<long double>(in.offset) + static_cast<long double>(extra);
    stand.positions.assign(static_cast<size_t>(in.num_axes),
                           sum >= 0.0L && sum < 0x1p63L ? static_cast<int64_t>(sum) : -1);  // negative or past int64: outside
  }
  if (stand.padding || stand.fault != 0) return stand;
  for (const int64_t position : stand.positions) {
    const bool past = in.max_position > 0 && position >= in.max_position;
    if (position < 0 || (past && !in.identity_past_table)) stand.fault = 1;
    if (past) stand.rotated = false;
  }
  return stand;
}

}  // namespace

RotaryOutput rotary(const RotaryInput& in) {
  RotaryOutput out;
  for (const RotaryInput::Tensor& tensor : in.tensors) out.y.emplace_back(tensor.x.size());
  const int64_t width = in.rotary_dim / in.num_blocks;
  std::vector<long double> frequency_of_theta;  // of each pair of a block
  for (int64_t pair = 0; in.source == AngleSource::theta && 2 * pair < width; ++pair) {
    frequency_of_theta.push_back(
        std::pow(static_cast<long double>(in.theta), -2.0L * static_cast<long double>(pair) / static_cast<long double>(width)));
  }
  for (int64_t b = 0; b < in.batch; ++b) {
    for (int64_t s = 0; s < in.seq_len; ++s) {
      const RotaryStand stand = stand_of(in, b, s);
      if (stand.padding) continue;
      if (stand.fault != 0) out.faults.emplace_back(b * in.seq_len + s, stand.fault);
      struct Rotation {
        long double cos, sin, angle;
      };
      // Computes cos and sin of channel c of block n; pair number `pair` in it
      const auto compute_rotation = [&](int64_t n, int64_t pair, int64_t c) {
        const int64_t global = n * (width / 2) + pair;
        int64_t axis = 0;
        if (in.num_axes > 1) axis = in.pair_axis.empty() ? n : in.pair_axis.at(static_cast<size_t>(global));
        if (axis >= in.num_axes) axis = 0;
        const int64_t position = stand.positions.at(static_cast<size_t>(axis));
        const int64_t row = in.per_token ? s : position, column = in.full ? c : pair;
        long double angle = 0.0L, cos = 0.0L, sin = 0.0L;
        switch (in.source) {
          case AngleSource::cos_sin: cos = in.cos.at(b, row, column), sin = in.sin.at(b, row, column); break;
          case AngleSource::angles: angle = in.angles.at(b, row, column); break;
          case AngleSource::inv_freq:
            angle = static_cast<long double>(position) * static_cast<long double>(in.inv_freq.at(static_cast<size_t>(pair)));
            break;
          case AngleSource::theta:
            angle = static_cast<long double>(position) * frequency_of_theta[static_cast<size_t>(pair)];
            break;
        }
        if (in.source != AngleSource::cos_sin) cos = std::cos(angle), sin = std::sin(angle);
        return Rotation{cos * static_cast<long double>(in.factor), sin * static_cast<long double>(in.factor), angle};
      };
      std::vector<std::optional<Rotation>> known(static_cast<size_t>(in.rotary_dim));  // the same for all heads
      const auto rotation = [&](int64_t n, int64_t pair, int64_t c) {
        std::optional<Rotation>& of_channel = known.at(static_cast<size_t>(n * width + c));
        if (!of_channel) of_channel = compute_rotation(n, pair, c);
        return *of_channel;
      };
      for (size_t i = 0; i < in.tensors.size(); ++i) {
        const RotaryInput::Tensor& tensor = in.tensors[i];
        for (int64_t h = 0; h < tensor.num_heads; ++h) {
          const size_t first = static_cast<size_t>(((b * in.seq_len + s) * tensor.num_heads + h) * in.head_dim);
          for (int64_t d = 0; d < in.head_dim; ++d) {
            RotaryElement& y = out.y[i][first + static_cast<size_t>(d)];
            const int64_t inside = d - in.rotary_offset;
            const bool rotated = inside >= 0 && inside < in.rotary_dim;
            if (tensor.rotate && !rotated && in.tail == Tail::leave) continue;
            y.wanted = Wanted::zero;
            if (stand.fault != 0 || (tensor.rotate && !rotated && in.tail == Tail::zero)) continue;
            y.wanted = Wanted::copied;
            y.value = tensor.x[first + static_cast<size_t>(d)];
            if (!tensor.rotate || !rotated || !stand.rotated) continue;
            y.wanted = Wanted::rotated;
            const int64_t n = inside / width, c = inside % width;
            const bool second = in.interleaved ? c % 2 != 0 : c >= width / 2;
            const int64_t pair = in.interleaved ? c / 2 : c % (width / 2);
            const int64_t partner = in.interleaved ? (second ? c - 1 : c + 1) : (second ? c - width / 2 : c + width / 2);
            const long double self = y.value;
            const long double other = tensor.x[first + static_cast<size_t>(in.rotary_offset + n * width + partner)];
            const auto own = rotation(n, pair, c), others = rotation(n, pair, partner);
            // The inverse is the transpose: what the other channel took of this one. With inverse_by_own_sine it is by this channel's sine.
            const long double sin = !in.inverse ? own.sin : in.inverse_by_own_sine ? -own.sin : -others.sin;
            const long double term = (second ? sin : -sin) * other;
            y.value = self * own.cos + term;
            y.scale = std::fabs(self * own.cos) + std::fabs(term);
            y.slope = std::fabs(own.angle * static_cast<long double>(in.factor)) * (std::fabs(self) + std::fabs(other));
          }
        }
      }
    }
  }
  return out;
}

}  // namespace prologue::test::oracle
