// Attention of query rows over spans of the paged cache: softmax(q k^T * scale) v.
//
// A span is SPAN_KEYS keys at a fixed place in the sequence. Each span is a softmax of its own, merged into the row's
// total in order. Decoding spreads the spans over the threads, prefill takes them in turn: both do the same arithmetic, so
// in float32 a row's result depends neither on its neighbours nor on how its sequence was chunked.
#pragma once

#include <cmath>

#include "cache.hpp"

namespace eh {

constexpr int SPAN_KEYS = 256, MAX_BLOCKS = SPAN_KEYS / 16;
constexpr float NEVER = -INFINITY;

// Some blocks of one sequence and key head; `start` is the position of their first key.
template <class T>
struct Span {
  const T *keys[MAX_BLOCKS], *values[MAX_BLOCKS];
  int count, start;
};

// Rows of queries, [head_dim] each. first, last: the positions that each row sees, inclusive.
struct Queries {
  const float** q;
  const int32_t *first, *last;
  int count;
};

// Softmax of rows over some keys: maxima, sums, and unnormalised results [count, head_dim].
struct State {
  float *most, *total, *acc;
};

// The blocks of a span that some rows see, and the first position after them.
struct Seen {
  int begin, end, until;
};

template <class T>
inline Seen seen_by(const Op& op, const Queries& rows, int at, int count, const Span<T>& span) {
  int first = rows.first[at], last = rows.last[at];
  for (int r = at + 1; r < at + count; r++) {
    first = rows.first[r] < first ? rows.first[r] : first;
    last = rows.last[r] > last ? rows.last[r] : last;
  }
  if (last < span.start) return {0, 0, 0};
  const int begin = first > span.start ? (first - span.start) / op.block_size : 0;
  const int end = (last - span.start) / op.block_size + 1;
  return {begin, end < span.count ? end : span.count, last + 1};
}

template <int R, int C>
inline void dot_chunk(const float* const* q, const float* keys, int dim, int size, float (*scores)[SPAN_KEYS]) {
  v16 acc[R][C] = {};
  for (int d = 0; d < dim; d++) {
    v16 key[C];
    for (int c = 0; c < C; c++) key[c] = load(keys + d * size + c * 16);
    for (int r = 0; r < R; r++)
      for (int c = 0; c < C; c++) acc[r][c] = fma(key[c], splat(q[r][d]), acc[r][c]);
  }
  for (int r = 0; r < R; r++)
    for (int c = 0; c < C; c++) store(scores[r] + c * 16, acc[r][c]);
}

template <int R, int C>
inline void dot_chunk(const float* const* q, const bf16* keys, int dim, int size, float (*scores)[SPAN_KEYS]) {
  v16 acc[R][C] = {};
  for (int d = 0; d < dim; d += 2) {
    Pair key[C];
    for (int c = 0; c < C; c++) key[c] = load_pair(keys + d * size + c * 32);
    for (int r = 0; r < R; r++)
      for (int c = 0; c < C; c++) {
        acc[r][c] = fma(key[c].even, splat(q[r][d]), acc[r][c]);
        acc[r][c] = fma(key[c].odd, splat(q[r][d + 1]), acc[r][c]);
      }
  }
  for (int r = 0; r < R; r++)
    for (int c = 0; c < C; c++) store(scores[r] + c * 16, acc[r][c]);
}

// Scores [R] of rows with the keys of one block.
template <int R, class T>
inline void dot(const float* const* q, const T* keys, int dim, int size, float (*scores)[SPAN_KEYS]) {
  constexpr int lanes = sizeof(T) == 2 ? 2 : 1;
  int j = 0;
  for (; j + 32 <= size; j += 32)
    dot_chunk<R, 2>(q, keys + j * lanes, dim, size, (float(*)[SPAN_KEYS])(scores[0] + j));
  for (; j < size; j += 16) dot_chunk<R, 1>(q, keys + j * lanes, dim, size, (float(*)[SPAN_KEYS])(scores[0] + j));
}

template <int R, int C>
inline void weigh_block(const float (*p)[SPAN_KEYS], const float* values, int dim, int valid, v16 (&sum)[R][C]) {
  for (int j = 0; j < valid; j++) {
    v16 value[C];
    for (int c = 0; c < C; c++) value[c] = load(values + j * dim + c * 16);
    for (int r = 0; r < R; r++)
      for (int c = 0; c < C; c++) sum[r][c] = fma(value[c], splat(p[r][j]), sum[r][c]);
  }
}

template <int R, int C>
inline void weigh_block(const float (*p)[SPAN_KEYS], const bf16* values, int dim, int valid, v16 (&sum)[R][C]) {
  for (int j = 0; j < valid; j += 2) {
    Pair value[C];
    for (int c = 0; c < C; c++) value[c] = load_pair(values + j * dim + c * 32);
    for (int r = 0; r < R; r++)
      for (int c = 0; c < C; c++) sum[r][c] = fma(value[c].even, splat(p[r][j]), sum[r][c]);
    if (j + 1 < valid)
      for (int r = 0; r < R; r++)
        for (int c = 0; c < C; c++) sum[r][c] = fma(value[c].odd, splat(p[r][j + 1]), sum[r][c]);
  }
}

// C vectors of the results of R rows: the sum over the seen keys of weight times value.
template <int R, int C, class T>
inline void weigh(const Op& op, const float (*p)[SPAN_KEYS], const Span<T>& span, Seen seen, int d, float* acc) {
  constexpr int lanes = sizeof(T) == 2 ? 2 : 1;
  v16 sum[R][C] = {};
  for (int b = seen.begin; b < seen.end; b++) {
    // No further than what is seen: behind it a freed block's NaN may lie, which a weight of zero would not silence.
    const int left = seen.until - span.start - b * op.block_size, valid = left < op.block_size ? left : op.block_size;
    const auto* weights = (const float(*)[SPAN_KEYS])(p[0] + b * op.block_size);
    weigh_block<R, C>(weights, span.values[b] + d * lanes, op.head_dim, valid, sum);
  }
  for (int r = 0; r < R; r++)
    for (int c = 0; c < C; c++) store(acc + r * op.head_dim + d + c * 16, sum[r][c]);
}

// Scores [begin, end) of one row become weights. first, last: the scores that it sees.
inline void soften(float* scores, int begin, int end, float scale, int first, int last, float& most, float& total) {
  const v16 index = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  v16 high = splat(NEVER), sums = {};
  for (int j = begin; j < end; j += 16) {
    v16 score = load(scores + j) * scale;
    if (j < first || j + 15 > last) {
      const v16 at = index + float(j);
      score = (at >= splat(float(first))) & (at <= splat(float(last))) ? score : splat(NEVER);
    }
    store(scores + j, score);
    high = score > high ? score : high;
  }
  most = max(high);
  for (int j = begin; j < end; j += 16) {
    const v16 score = load(scores + j);
    const v16 weight = score == splat(NEVER) ? v16{} : exp(score - most);  // a NaN stays one, through the sum
    store(scores + j, weight);
    sums += weight;
  }
  total = sum(sums);
}

// R rows over a span.
template <int R, class T>
void attend(const Op& op, const Queries& rows, int at, const Span<T>& span, State part) {
  const Seen seen = seen_by(op, rows, at, R, span);
  const int size = op.block_size, dim = op.head_dim;
  float scores[R][SPAN_KEYS];
  for (int b = seen.begin; b < seen.end; b++)
    dot<R>(rows.q + at, span.keys[b], dim, size, (float(*)[SPAN_KEYS])(scores[0] + b * size));
  for (int r = 0; r < R; r++)
    soften(scores[r], seen.begin * size, seen.end * size, op.scale, rows.first[at + r] - span.start,
           rows.last[at + r] - span.start, part.most[at + r], part.total[at + r]);
  float* acc = part.acc + at * dim;
  int d = 0;
  for (; d + 64 <= dim; d += 64) weigh<R, 4>(op, scores, span, seen, d, acc);
  for (; d < dim; d += 16) weigh<R, 1>(op, scores, span, seen, d, acc);
}

template <class T>
void attend_rows(const Op& op, const Queries& rows, const Span<T>& span, State part) {
  int at = 0;
  for (; at + 4 <= rows.count; at += 4) attend<4>(op, rows, at, span, part);
  switch (rows.count - at) {
    case 3: return attend<3>(op, rows, at, span, part);
    case 2: return attend<2>(op, rows, at, span, part);
    case 1: return attend<1>(op, rows, at, span, part);
  }
}

// Adds the next span of one row to its total.
inline void merge(float& most, float& total, float* acc, float most2, float total2, const float* acc2, int dim) {
  if (most2 == NEVER && total2 == 0.0f) return;  // saw nothing there
  const float now = most2 > most ? most2 : most;
  const v16 a = splat(most == NEVER ? 0.0f : exp(most - now)), b = splat(exp(most2 - now));
  total = fma(splat(total2), b, splat(total) * a)[0];
  for (int i = 0; i < dim; i += 16) store(acc + i, fma(load(acc2 + i), b, load(acc + i) * a));
  most = now;
}

inline void finish(const float* acc, float total, int dim, float* out) {
  for (int i = 0; i < dim; i += 16) store(out + i, load(acc + i) / total);
}

}  // namespace eh
