// The paged attention operator: cuts a step into items of work, which the threads take in turn.
#pragma once

#include <vector>

#include "amx_attention.hpp"
#include "attention.hpp"

namespace eh {

constexpr int TILE_TOKENS = 16;  // query tokens of a prefill item
constexpr int MAX_GROUP = 64;    // query heads of a key head

// One item. Prefill (`slot` < 0): query tokens [from, to) of a sequence. Decode: span `from` of the sequence's one query
// token, whose partial result goes to scratch slot `slot`.
struct Item {
  int32_t sequence, head, from, to, slot;
};

struct Work {
  std::vector<Item> items;
  std::vector<float> partial;  // for each decode slot: [group] maxima, [group] sums, [group, head_dim] results
};

inline int group_of(const Op& op) { return op.heads / op.kv_heads; }

inline size_t slot_size(const Op& op) { return size_t(group_of(op)) * (op.head_dim + 2); }

// What a query at `position` sees first, and the span of a position.
inline int first_key(const Op& op, int position) {
  return op.window && position >= op.window ? position - op.window + 1 : 0;
}

inline int span_blocks(const Op& op) { return SPAN_KEYS / op.block_size; }

inline int span_of(const Op& op, int position) { return position / op.block_size / span_blocks(op); }

// Span `number` of a sequence, up to the block of position `last`.
template <class T>
Span<T> span_at(const Op& op, const Step& step, int64_t sequence, int head, int number, int last) {
  const int32_t* table = step.block_tables[op.group] + sequence * step.table_width[op.group];
  const int begin = number * span_blocks(op), end = last / op.block_size + 1;
  Span<T> span;
  span.start = begin * op.block_size;
  span.count = end - begin < span_blocks(op) ? end - begin : span_blocks(op);
  for (int b = 0; b < span.count; b++) {
    const int64_t place = table[begin + b] * block_elements(op) + head * head_elements(op);
    span.keys[b] = (const T*)op.k_pool + place;
    span.values[b] = (const T*)op.v_pool + place;
  }
  return span;
}

// Rows (token, head of the group) for query tokens [from, to) of one key head.
struct HeadRows {
  const float* q[TILE_TOKENS * MAX_GROUP];
  int32_t first[TILE_TOKENS * MAX_GROUP], last[TILE_TOKENS * MAX_GROUP];
  int count = 0;

  HeadRows(const Op& op, const Step& step, int64_t from, int64_t to, int head) {
    for (int64_t t = from; t < to; t++)
      for (int g = 0; g < group_of(op); g++, count++) {
        q[count] = op.x + (t * op.heads + head * group_of(op) + g) * op.head_dim;
        last[count] = step.positions[t];
        first[count] = first_key(op, last[count]);
      }
  }
  Queries queries() { return {q, first, last, count}; }
};

// The span in float32, in `memory`: many rows read each number, which is then unpacked once.
inline Span<float> widen(const Op& op, const Span<bf16>& span, std::vector<float>& memory) {
  const int64_t size = head_elements(op);
  memory.resize(2 * size * span.count);
  Span<float> wide;
  wide.count = span.count, wide.start = span.start;
  for (int b = 0; b < span.count; b++) {
    float *keys = memory.data() + 2 * b * size, *values = keys + size;
    for (int i = 0; i < op.head_dim; i += 2)
      for (int j = 0; j < op.block_size; j += 16) {
        const Pair pair = load_pair(span.keys[b] + (i * op.block_size + 2 * j));
        store(keys + i * op.block_size + j, pair.even);
        store(keys + (i + 1) * op.block_size + j, pair.odd);
      }
    for (int j = 0; j < op.block_size; j += 2)
      for (int i = 0; i < op.head_dim; i += 16) {
        const Pair pair = load_pair(span.values[b] + (j * op.head_dim + 2 * i));
        store(values + j * op.head_dim + i, pair.even);
        store(values + (j + 1) * op.head_dim + i, pair.odd);
      }
    wide.keys[b] = keys, wide.values[b] = values;
  }
  return wide;
}

inline void prefill_span(const Op& op, const Queries& rows, const Span<float>& span, State part) {
  attend_rows(op, rows, span, part);
}

inline void prefill_span(const Op& op, const Queries& rows, const Span<bf16>& span, State part) {
  thread_local std::vector<float> memory;
  if (amx_attends(op)) return amx_attend(op, rows, span, part);
  attend_rows(op, rows, widen(op, span, memory), part);
}

template <class T>
void prefill_item(const Op& op, const Step& step, const Item& item) {
  thread_local std::vector<float> scratch;
  HeadRows rows(op, step, item.from, item.to, item.head);
  const int count = rows.count, dim = op.head_dim, last = step.positions[item.to - 1];
  scratch.assign(size_t(count) * (2 * dim + 4), 0.0f);
  float* p = scratch.data();
  const State sum{p, p + count, p + 4 * count}, part{p + 2 * count, p + 3 * count, p + (4 + dim) * count};
  for (int r = 0; r < count; r++) sum.most[r] = NEVER;
  for (int number = span_of(op, rows.first[0]); number <= span_of(op, last); number++) {
    prefill_span(op, rows.queries(), span_at<T>(op, step, item.sequence, item.head, number, last), part);
    for (int r = 0; r < count; r++)
      merge(sum.most[r], sum.total[r], sum.acc + r * dim, part.most[r], part.total[r], part.acc + r * dim, dim);
  }
  for (int r = 0; r < count; r++) {
    const int64_t place = rows.q[r] - op.x;  // the output has the layout of q
    finish(sum.acc + r * dim, sum.total[r], dim, op.out + place);
  }
}

template <class T>
void decode_item(const Op& op, const Step& step, const Item& item, float* partial) {
  const int64_t t = step.query_start[item.sequence];
  const int group = group_of(op);
  HeadRows rows(op, step, t, t + 1, item.head);
  const Span<T> span = span_at<T>(op, step, item.sequence, item.head, item.from, rows.last[0]);
  attend_rows(op, rows.queries(), span, {partial, partial + group, partial + 2 * group});
}

// Merges the spans of a decoding sequence, which are consecutive slots.
inline void decode_merge(const Op& op, const Step& step, const Item& item, int spans, const float* partial) {
  const int group = group_of(op), dim = op.head_dim;
  const int64_t t = step.query_start[item.sequence];
  float acc[1024];
  for (int g = 0; g < group; g++) {
    float most = NEVER, total = 0.0f;
    std::memset(acc, 0, sizeof(float) * dim);
    for (int s = 0; s < spans; s++) {
      const float* part = partial + s * slot_size(op);
      merge(most, total, acc, part[g], part[group + g], part + 2 * group + g * dim, dim);
    }
    finish(acc, total, dim, op.out + (t * op.heads + item.head * group + g) * dim);
  }
}

inline void plan(const Op& op, const Step& step, Work& work) {
  work.items.clear();
  int32_t slots = 0;
  for (int32_t b = 0; b < step.sequences; b++) {
    const int32_t start = step.query_start[b], end = step.query_start[b + 1], last = step.seq_lens[b] - 1;
    for (int32_t head = 0; head < op.kv_heads; head++) {
      if (end - start == 1) {
        for (int32_t s = span_of(op, first_key(op, last)); s <= span_of(op, last); s++)
          work.items.push_back({b, head, s, s + 1, slots++});
      } else {
        for (int32_t t = start; t < end; t += TILE_TOKENS)
          work.items.push_back({b, head, t, t + TILE_TOKENS < end ? t + TILE_TOKENS : end, -1});
      }
    }
  }
  work.partial.resize(slots * slot_size(op));
}

// The first span's item stands for its sequence and head; 0: not the first.
inline int spans_from(const Op& op, const Step& step, const Item& item) {
  const int last = step.seq_lens[item.sequence] - 1, first = span_of(op, first_key(op, last));
  return item.slot >= 0 && item.from == first ? span_of(op, last) - first + 1 : 0;
}

template <class T>
void paged_attention(const Op& op, const Step& step, Team team, Work& work, int64_t& next) {
  if (team.rank == 0) {
    plan(op, step, work);
    next = 0;
  }
  team.meet();
  const int64_t count = work.items.size();
  for (int64_t i; (i = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED)) < count;) {
    const Item& item = work.items[i];
    if (item.slot < 0) prefill_item<T>(op, step, item);
    else decode_item<T>(op, step, item, work.partial.data() + item.slot * slot_size(op));
  }
  team.meet();
  for (int64_t i = team.begin(count); i < team.end(count); i++) {
    const Item& item = work.items[i];
    if (const int spans = spans_from(op, step, item))
      decode_merge(op, step, item, spans, work.partial.data() + item.slot * slot_size(op));
  }
}

}  // namespace eh
