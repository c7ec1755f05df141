// Attention over the paged cache: softmax(q k^T * scale) v.
//
// A query row runs over its keys in spans of SPAN blocks. Each span is an online softmax of its own, merged into the
// row's total in order. Decoding spreads the spans over the threads, prefill does them in turn: both do the same
// arithmetic, so a row's result depends neither on its neighbours nor on how its sequence was chunked.
#pragma once

#include <cmath>
#include <vector>

#include "program.hpp"
#include "vec.hpp"

namespace eh {

constexpr int SPAN = 8;          // blocks
constexpr int TILE_TOKENS = 16;  // query tokens of a prefill item
constexpr int MAX_BLOCK = 128;   // keys
constexpr float NEVER = -INFINITY;

// Partial softmax of `count` rows: maxima, sums, and accumulators [count, dim].
struct State {
  float *most, *total, *acc;
  void reset(int count, int dim) {
    for (int r = 0; r < count; r++) most[r] = NEVER, total[r] = 0.0f;
    std::memset(acc, 0, sizeof(float) * count * dim);
  }
};

// Query rows that see the same keys of one head. first, last: the positions that each row sees, inclusive.
struct Queries {
  const float** q;
  const int32_t *first, *last;
  int count;
};

template <int R, int C, class T>
inline void dot_chunk(const float* const* q, const T* keys, int dim, int size, float (*scores)[MAX_BLOCK]) {
  v16 acc[R][C] = {};
  for (int d = 0; d < dim; d++) {
    v16 key[C];
    for (int c = 0; c < C; c++) key[c] = load(keys + d * size + c * 16);
    for (int r = 0; r < R; r++)
      for (int c = 0; c < C; c++) acc[r][c] += key[c] * q[r][d];
  }
  for (int r = 0; r < R; r++)
    for (int c = 0; c < C; c++) store(scores[r] + c * 16, acc[r][c]);
}

template <int R, class T>
inline void dot(const float* const* q, const T* keys, int dim, int size, float (*scores)[MAX_BLOCK]) {
  int j = 0;
  for (; j + 32 <= size; j += 32) dot_chunk<R, 2>(q, keys + j, dim, size, (float(*)[MAX_BLOCK])(scores[0] + j));
  for (; j < size; j += 16) dot_chunk<R, 1>(q, keys + j, dim, size, (float(*)[MAX_BLOCK])(scores[0] + j));
}

template <int R, int C, class T>
inline void weigh_chunk(const float (*p)[MAX_BLOCK], const T* values, int dim, int valid, const float* decay, float* acc) {
  v16 sum[R][C];
  for (int r = 0; r < R; r++)
    for (int c = 0; c < C; c++) sum[r][c] = load(acc + r * dim + c * 16) * decay[r];
  for (int j = 0; j < valid; j++) {
    v16 value[C];
    for (int c = 0; c < C; c++) value[c] = load(values + j * dim + c * 16);
    for (int r = 0; r < R; r++)
      for (int c = 0; c < C; c++) sum[r][c] += value[c] * p[r][j];
  }
  for (int r = 0; r < R; r++)
    for (int c = 0; c < C; c++) store(acc + r * dim + c * 16, sum[r][c]);
}

template <int R, class T>
inline void weigh(const float (*p)[MAX_BLOCK], const T* values, int dim, int valid, const float* decay, float* acc) {
  int d = 0;
  for (; d + 64 <= dim; d += 64) weigh_chunk<R, 4>(p, values + d, dim, valid, decay, acc + d);
  for (; d < dim; d += 16) weigh_chunk<R, 1>(p, values + d, dim, valid, decay, acc + d);
}

// Scores of one row become weights; the row's maximum and sum follow. Returns what its accumulator decays by.
inline float soften(float* scores, int size, float scale, int first, int last, float& most, float& total) {
  const v16 index = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  v16 high = splat(NEVER);
  for (int j = 0; j < size; j += 16) {
    const v16 at = index + float(j);
    const i16x seen = (at >= splat(float(first))) & (at <= splat(float(last)));
    const v16 score = seen ? load(scores + j) * scale : splat(NEVER);
    store(scores + j, score);
    high = score > high ? score : high;
  }
  const float peak = max(high), now = peak > most ? peak : most;
  v16 added = {};
  for (int j = 0; j < size; j += 16) {
    const v16 score = load(scores + j);
    const v16 weight = score == splat(NEVER) ? v16{} : exp(score - now);  // a NaN stays one, through the sum
    store(scores + j, weight);
    added += weight;
  }
  const float decay = most == now ? 1.0f : most == NEVER ? 0.0f : exp(most - now);
  total = total * decay + sum(added);
  most = now;
  return decay;
}

template <int R, class T>
void attend(const Op& op, const Queries& rows, int at, const T* keys, const T* values, int start, int valid, State s) {
  float scores[R][MAX_BLOCK], decay[R];
  const int dim = op.head_dim, size = op.block_size;
  dot<R, T>(rows.q + at, keys, dim, size, scores);
  for (int r = 0; r < R; r++) {
    const int i = at + r;
    if (rows.first[i] >= start + size || rows.last[i] < start) {
      decay[r] = 1.0f;  // sees nothing of this block
      std::memset(scores[r], 0, sizeof scores[r]);
    } else {
      decay[r] = soften(scores[r], size, op.scale, rows.first[i] - start, rows.last[i] - start, s.most[i], s.total[i]);
    }
  }
  weigh<R, T>(scores, values, dim, valid, decay, s.acc + at * dim);
}

// All rows over one block.
template <class T>
void attend_block(const Op& op, const Queries& rows, const T* keys, const T* values, int start, int valid, State s) {
  int at = 0;
  for (; at + 4 <= rows.count; at += 4) attend<4, T>(op, rows, at, keys, values, start, valid, s);
  switch (rows.count - at) {
    case 3: return attend<3, T>(op, rows, at, keys, values, start, valid, s);
    case 2: return attend<2, T>(op, rows, at, keys, values, start, valid, s);
    case 1: return attend<1, T>(op, rows, at, keys, values, start, valid, s);
  }
}

inline const float* widen(const bf16* from, int64_t count, std::vector<float>& to) {
  to.resize(count);
  for (int64_t i = 0; i < count; i += 16) store(to.data() + i, load(from + i));
  return to.data();
}

// All rows over the blocks [begin, end) of a sequence of `length` tokens.
template <class T>
void attend_span(const Op& op, const Queries& rows, int head, const int32_t* table, int begin, int end, int length, State s) {
  const int64_t head_elements = int64_t(op.block_size) * op.head_dim, block_elements = head_elements * op.kv_heads;
  s.reset(rows.count, op.head_dim);
  for (int b = begin; b < end; b++) {
    const int64_t place = table[b] * block_elements + head * head_elements;
    const T *keys = (const T*)op.k_pool + place, *values = (const T*)op.v_pool + place;
    const int start = b * op.block_size, valid = length - start < op.block_size ? length - start : op.block_size;
    if constexpr (sizeof(T) == 2) {
      if (rows.count > 8) {  // many rows read each number: convert it once
        thread_local std::vector<float> wide_keys, wide_values;
        attend_block(op, rows, widen(keys, head_elements, wide_keys), widen(values, head_elements, wide_values), start,
                     valid, s);
        continue;
      }
    }
    attend_block(op, rows, keys, values, start, valid, s);
  }
}

// Adds a later span of one row to its total.
inline void merge(float& most, float& total, float* acc, float most2, float total2, const float* acc2, int dim) {
  if (most2 == NEVER) return;
  const float now = most2 > most ? most2 : most;
  const float a = most == NEVER ? 0.0f : exp(most - now), b = exp(most2 - now);
  total = total * a + total2 * b;
  for (int i = 0; i < dim; i += 16) store(acc + i, load(acc + i) * a + load(acc2 + i) * b);
  most = now;
}

inline void finish(const float* acc, float total, int dim, float* out) {
  for (int i = 0; i < dim; i += 16) store(out + i, load(acc + i) / total);
}

// What a query at `position` sees first.
inline int first_key(const Op& op, int position) { return op.window && position >= op.window ? position - op.window + 1 : 0; }

inline int span_of(const Op& op, int position) { return position / op.block_size / SPAN; }

// A chunk's query tokens [from, to) for one key head, span after span.
template <class T>
void prefill_item(const Op& op, const Step& step, int64_t sequence, int64_t from, int64_t to, int head) {
  thread_local std::vector<float> scratch;
  const int group = op.heads / op.kv_heads, dim = op.head_dim, count = int(to - from) * group;
  const int length = step.seq_lens[sequence];
  scratch.resize(size_t(count) * (2 * dim + 4));
  float* p = scratch.data();
  State sum{p, p + count, p + 4 * count}, part{p + 2 * count, p + 3 * count, p + (4 + dim) * count};
  const float* q[TILE_TOKENS * 64];
  int32_t first[TILE_TOKENS * 64], last[TILE_TOKENS * 64];
  for (int r = 0; r < count; r++) {
    const int64_t t = from + r / group;
    q[r] = op.x + (t * op.heads + head * group + r % group) * dim;
    last[r] = step.positions[t];
    first[r] = first_key(op, last[r]);
  }
  const Queries rows{q, first, last, count};
  const int32_t* table = step.block_tables[op.group] + sequence * step.table_width[op.group];
  const int end = last[count - 1] / op.block_size + 1;
  sum.reset(count, dim);
  for (int span = span_of(op, first[0]); span <= span_of(op, last[count - 1]); span++) {
    const int begin = span * SPAN, first_block = first[0] / op.block_size;
    const int until = begin + SPAN < end ? begin + SPAN : end;
    attend_span<T>(op, rows, head, table, begin > first_block ? begin : first_block, until, length, part);
    for (int r = 0; r < count; r++)
      merge(sum.most[r], sum.total[r], sum.acc + r * dim, part.most[r], part.total[r], part.acc + r * dim, dim);
  }
  for (int r = 0; r < count; r++) {
    const int64_t t = from + r / group;
    finish(sum.acc + r * dim, sum.total[r], dim, op.out + (t * op.heads + head * group + r % group) * dim);
  }
}

// One item of work. Prefill: query tokens [from, to) of a sequence. Decode (`slot` >= 0): span `from` of the sequence's
// one query token, whose partial result goes to scratch slot `slot`.
struct Item {
  int32_t sequence, head, from, to, slot;
};

struct Work {
  std::vector<Item> items;
  std::vector<float> partial;  // for each decode slot: [group] maxima, [group] sums, [group, dim] accumulators
};

// Spans of a decoding sequence.
struct Spans {
  int first, last;
};

inline Spans spans_of(const Op& op, const Step& step, int64_t sequence) {
  const int position = step.seq_lens[sequence] - 1;
  return {span_of(op, first_key(op, position)), span_of(op, position)};
}

inline void plan(const Op& op, const Step& step, Work& work) {
  work.items.clear();
  int32_t slots = 0;
  for (int32_t b = 0; b < step.sequences; b++) {
    const int32_t start = step.query_start[b], end = step.query_start[b + 1];
    for (int32_t head = 0; head < op.kv_heads; head++) {
      if (end - start == 1) {
        const Spans spans = spans_of(op, step, b);
        for (int32_t s = spans.first; s <= spans.last; s++) work.items.push_back({b, head, s, s + 1, slots++});
      } else {
        for (int32_t t = start; t < end; t += TILE_TOKENS)
          work.items.push_back({b, head, t, t + TILE_TOKENS < end ? t + TILE_TOKENS : end, -1});
      }
    }
  }
  const int group = op.heads / op.kv_heads;
  work.partial.resize(size_t(slots) * group * (op.head_dim + 2));
}

template <class T>
void decode_item(const Op& op, const Step& step, const Item& item, float* partial) {
  const int group = op.heads / op.kv_heads, dim = op.head_dim;
  const int64_t t = step.query_start[item.sequence];
  const float* q[64];
  int32_t first[64], last[64];
  for (int g = 0; g < group; g++) {
    q[g] = op.x + (t * op.heads + item.head * group + g) * dim;
    last[g] = step.positions[t];
    first[g] = first_key(op, last[g]);
  }
  const int32_t* table = step.block_tables[op.group] + item.sequence * step.table_width[op.group];
  const int first_block = first[0] / op.block_size, end = last[0] / op.block_size + 1;
  const int begin = item.from * SPAN > first_block ? item.from * SPAN : first_block;
  const int until = item.to * SPAN < end ? item.to * SPAN : end;
  attend_span<T>(op, {q, first, last, group}, item.head, table, begin, until, last[0] + 1,
                 {partial, partial + group, partial + 2 * group});
}

// Merges the spans of a decoding sequence, which are consecutive slots.
inline void decode_merge(const Op& op, const Step& step, const Item& item, const float* partial) {
  const int group = op.heads / op.kv_heads, dim = op.head_dim;
  const Spans spans = spans_of(op, step, item.sequence);
  const int64_t t = step.query_start[item.sequence];
  float acc[1024];
  for (int g = 0; g < group; g++) {
    float most = NEVER, total = 0.0f;
    std::memset(acc, 0, sizeof(float) * dim);
    for (int s = 0; s <= spans.last - spans.first; s++) {
      const float* part = partial + size_t(s) * group * (dim + 2);
      merge(most, total, acc, part[g], part[group + g], part + 2 * group + g * dim, dim);
    }
    finish(acc, total, dim, op.out + (t * op.heads + item.head * group + g) * dim);
  }
}

template <class T>
void paged_attention(const Op& op, const Step& step, Team team, Work& work, int64_t& next) {
  const size_t slot_size = size_t(op.heads / op.kv_heads) * (op.head_dim + 2);
  if (team.rank == 0) {
    plan(op, step, work);
    next = 0;
  }
  team.meet();
  for (;;) {
    const int64_t i = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED);
    if (i >= int64_t(work.items.size())) break;
    const Item& item = work.items[i];
    if (item.slot < 0) prefill_item<T>(op, step, item.sequence, item.from, item.to, item.head);
    else decode_item<T>(op, step, item, work.partial.data() + item.slot * slot_size);
  }
  team.meet();
  for (size_t i = team.begin(work.items.size()); i < size_t(team.end(work.items.size())); i++) {
    const Item& item = work.items[i];
    if (item.slot >= 0 && item.from == spans_of(op, step, item.sequence).first)
      decode_merge(op, step, item, work.partial.data() + item.slot * slot_size);
  }
}

}  // namespace eh
