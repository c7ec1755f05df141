// The operators between the matrix products and attention. Each token is one thread's work.
#pragma once

#include <cmath>

#include "cache.hpp"

namespace eh {

// out = x / sqrt(mean(x^2) + eps) * weight over `n` numbers; out may be x.
inline void normalise(const float* x, const float* weight, float eps, int64_t n, float* out) {
  v16 squares = {};
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) squares = fma(load(x + i), load(x + i), squares);
  float total = sum(squares);
  for (; i < n; i++) total += x[i] * x[i];
  const float factor = 1.0f / std::sqrt(total / float(n) + eps);
  for (i = 0; i + 16 <= n; i += 16) store(out + i, load(x + i) * factor * load(weight + i));
  for (; i < n; i++) out[i] = x[i] * factor * weight[i];
}

inline void add_row(const float* x, const float* y, int64_t n, float* out) {
  for (int64_t i = 0; i < n; i++) out[i] = x[i] + y[i];
}

inline void rms_norm(const Op& op, int64_t rows, Team team) {
  for (int64_t t = team.begin(rows); t < team.end(rows); t++)
    normalise(op.x + t * op.n, (const float*)op.weight, op.eps, op.n, op.out + t * op.n);
}

inline void add_rms_norm(const Op& op, int64_t rows, Team team) {
  for (int64_t t = team.begin(rows); t < team.end(rows); t++) {
    add_row(op.x + t * op.n, op.y + t * op.n, op.n, op.out2 + t * op.n);
    normalise(op.out2 + t * op.n, (const float*)op.weight, op.eps, op.n, op.out + t * op.n);
  }
}

inline void add(const Op& op, int64_t rows, Team team) {
  for (int64_t t = team.begin(rows); t < team.end(rows); t++)
    add_row(op.x + t * op.n, op.y + t * op.n, op.n, op.out + t * op.n);
}

inline v16 silu(v16 gate) { return gate / (splat(1.0f) + exp(-gate)); }

// out = gate * sigmoid(gate) * up, x = [gate, up]. The threads share the columns: there may be one row.
inline void silu_and_mul(const Op& op, int64_t rows, Team team) {
  const int64_t whole = op.n / 16 * 16, rest = op.n - whole, begin = team.begin(op.n / 16) * 16;
  const int64_t end = team.end(op.n / 16) * 16;
  for (int64_t t = 0; t < rows; t++) {
    const float *gate = op.x + t * 2 * op.n, *up = gate + op.n;
    float* out = op.out + t * op.n;
    for (int64_t i = begin; i < end; i += 16) store(out + i, silu(load(gate + i)) * load(up + i));
    if (rest && team.rank == 0) {
      v16 g = {}, u = {};
      std::memcpy(&g, gate + whole, rest * sizeof(float));
      std::memcpy(&u, up + whole, rest * sizeof(float));
      const v16 y = silu(g) * u;
      std::memcpy(out + whole, &y, rest * sizeof(float));
    }
  }
}

template <class W>
void embedding(const Op& op, const Step& step, Team team) {
  for (int64_t t = team.begin(step.tokens); t < team.end(step.tokens); t++) {
    const W* row = (const W*)op.weight + step.token_ids[t] * op.n;
    for (int64_t i = 0; i < op.n; i++) op.out[t * op.n + i] = to_float(row[i]);
  }
}

inline void select_rows(const Op& op, const Step& step, Team team) {
  for (int64_t r = team.begin(step.logits_rows); r < team.end(step.logits_rows); r++)
    std::memcpy(op.out + r * op.n, op.x + step.logits[r] * op.n, op.n * sizeof(float));
}

// Half-split rotation of the first `rotary` numbers, the rest copied.
inline void rotate(const float* x, const float* cos, const float* sin, int rotary, int dim, float* out) {
  const int half = rotary / 2;
  for (int i = 0; i < half; i++) {
    const float a = x[i], b = x[half + i];
    out[i] = a * cos[i] - b * sin[i];
    out[half + i] = b * cos[i] + a * sin[i];
  }
  for (int i = rotary; i < dim; i++) out[i] = x[i];
}

// Splits qkv, normalises and rotates q and k, writes k and v into the cache (layout: cache.hpp), gives q.
template <class C>
void qkv_rope_kv(const Op& op, const Step& step, Team team) {
  const int dim = op.head_dim, size = op.block_size, half = op.rotary / 2;
  const int64_t width = int64_t(op.heads + 2 * op.kv_heads) * dim;
  float normed[1024], key[1024];
  for (int64_t t = team.begin(step.tokens); t < team.end(step.tokens); t++) {
    const float *row = op.x + t * width, *k = row + op.heads * dim, *v = k + op.kv_heads * dim;
    const int32_t position = step.positions[t];
    const float *cos = op.cos + int64_t(position) * half, *sin = op.sin + int64_t(position) * half;
    for (int h = 0; h < op.heads; h++) {
      const float* q = row + h * dim;
      if (op.q_norm) normalise(q, op.q_norm, op.eps, dim, normed), q = normed;
      rotate(q, cos, sin, op.rotary, dim, op.out + (t * op.heads + h) * dim);
    }
    const int32_t* table = step.block_tables[op.group] + step.row_of_token[t] * step.table_width[op.group];
    const int64_t block = table[position / size] * block_elements(op);
    const int offset = position % size;
    for (int h = 0; h < op.kv_heads; h++) {
      const float* source = k + h * dim;
      if (op.k_norm) normalise(source, op.k_norm, op.eps, dim, normed), source = normed;
      rotate(source, cos, sin, op.rotary, dim, key);
      C* k_block = (C*)op.k_pool + block + h * head_elements(op);
      C* v_block = (C*)op.v_pool + block + h * head_elements(op);
      for (int i = 0; i < dim; i++) assign(k_block[key_at(C{}, i, offset, size)], key[i]);
      for (int i = 0; i < dim; i++) assign(v_block[value_at(C{}, i, offset, dim)], v[h * dim + i]);
    }
  }
}

}  // namespace eh
