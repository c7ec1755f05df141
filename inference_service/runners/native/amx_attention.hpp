// Attention of many query rows over a span in bfloat16 on the matrix unit. Scores and sums are float32; queries and weights
// are rounded to bfloat16, as the keys and values are.
#pragma once

#include <vector>

#include "amx.hpp"
#include "attention.hpp"

namespace eh {

inline bool amx_attends(const Op& op) {
  return op.head_dim % TILE_K == 0 && op.block_size % TILE_K == 0 && amx_permitted();
}

#ifdef __AMX_BF16__

// What a thread needs for 16 rows.
struct AmxScratch {
  std::vector<bf16> q, tail;
  alignas(64) float scores[16][SPAN_KEYS];
  alignas(64) bf16 weights[16][SPAN_KEYS];
};

// The values of a block, zeros behind the first `valid` tokens: a freed block's NaN may lie there.
inline const bf16* clean_tail(const Op& op, const bf16* values, int valid, std::vector<bf16>& tail) {
  tail.assign(values, values + head_elements(op));
  for (int token = valid; token < op.block_size; token++)
    for (int d = 0; d < op.head_dim; d++) tail[value_at(bf16{}, d, token, op.head_dim)] = bf16{0};
  return tail.data();
}

// Scores of 16 rows with the seen blocks.
inline void amx_scores(const Op& op, const Span<bf16>& span, Seen seen, AmxScratch& s) {
  const int64_t dim = op.head_dim, size = op.block_size;
  for (int b = seen.begin; b < seen.end; b++)
    for (int64_t j = 0; j < size; j += 32) {
      float* c = s.scores[0] + b * size + j;
      const bf16* keys = span.keys[b] + j * 2;
      const Tiles tiles{s.q.data(), dim * 2, 0, size * 4, 64, c, SPAN_KEYS * 4, 0, 64, dim / TILE_K};
      amx_tiles<1, 2>(tiles, [=](int64_t step) { return keys + step * TILE_K * size; });
    }
}

// Results of 16 rows, [16, head_dim] in `out`, from their weights and the seen values.
inline void amx_weigh(const Op& op, const Span<bf16>& span, Seen seen, const AmxScratch& s, float* out) {
  const int64_t dim = op.head_dim, size = op.block_size, per_block = size / TILE_K;
  const bf16* a = s.weights[0] + seen.begin * size;
  for (int64_t d = 0; d < dim; d += 32) {
    const Tiles tiles{a,       SPAN_KEYS * 2, 0,       dim * 4, 64,
                      out + d, dim * 4,       0,       64,      (seen.end - seen.begin) * per_block};
    amx_tiles<1, 2>(tiles, [&](int64_t step) {
      return span.values[seen.begin + step / per_block] + step % per_block * TILE_K * dim + d * 2;
    });
  }
}

inline void amx_attend(const Op& op, const Queries& rows, Span<bf16> span, State part) {
  thread_local AmxScratch s;
  thread_local std::vector<float> results;
  const int dim = op.head_dim, size = op.block_size;
  const int until = rows.last[rows.count - 1] + 1 - span.start, valid = until - (span.count - 1) * size;
  if (valid < size) span.values[span.count - 1] = clean_tail(op, span.values[span.count - 1], valid, s.tail);
  results.resize(16 * dim);
  _tile_loadconfig(&TILE_CONFIG);
  for (int at = 0; at < rows.count; at += 16) {
    const int count = rows.count - at < 16 ? rows.count - at : 16;
    const Seen seen = seen_by(op, rows, at, count, span);
    s.q.assign(16 * dim, bf16{0});
    for (int r = 0; r < count; r++) narrow(rows.q[at + r], dim, s.q.data() + r * dim);
    memory_fence();
    amx_scores(op, span, seen, s);
    for (int r = 0; r < count; r++) {
      soften(s.scores[r], seen.begin * size, seen.end * size, op.scale, rows.first[at + r] - span.start,
             rows.last[at + r] - span.start, part.most[at + r], part.total[at + r]);
      narrow(s.scores[r] + seen.begin * size, (seen.end - seen.begin) * size, s.weights[r] + seen.begin * size);
    }
    memory_fence();
    amx_weigh(op, span, seen, s, results.data());
    std::memcpy(part.acc + at * dim, results.data(), sizeof(float) * count * dim);
  }
  _tile_release();
}

#else

inline void amx_attend(const Op&, const Queries&, const Span<bf16>&, State) {}

#endif

}  // namespace eh
