// y[T, N] = x[T, K] w[N, K]^T + bias, for few or many rows.
//
// Weights are packed into panels of 16 outputs: [N/16][K][16] in float32, [N/16][K/2][16][2] in bfloat16 with K rounded
// up to 32, what is missing filled with zeros. Each output is one chain of multiply-adds over k, in order, whatever the number of rows: a token's
// result never depends on what else is in the step.
#pragma once

#include "amx.hpp"
#include "program.hpp"
#include "vec.hpp"

namespace eh {

constexpr int PANEL = 16;
#ifdef __AVX512F__
constexpr int ROWS = 8, PANELS = 3;  // 24 accumulators of 32 registers
#else
constexpr int ROWS = 4, PANELS = 1;
#endif
constexpr int64_t AMX_ROWS = 5;    // from here on the matrix unit is faster
constexpr int64_t ROW_BLOCK = 64;  // rows that are done with a group of panels before the next group

inline int64_t panel_elements(int64_t k, bool paired) { return PANEL * (paired ? (k + TILE_K - 1) / TILE_K * TILE_K : k); }

template <class From>
void pack_panel(const From* w, int64_t n, int64_t k, int64_t panel, float* out) {
  for (int64_t i = 0; i < k; i++)
    for (int64_t j = 0; j < PANEL; j++) {
      const int64_t row = panel * PANEL + j;
      out[i * PANEL + j] = row < n ? to_float(w[row * k + i]) : 0.0f;
    }
}

template <class From>
void pack_panel(const From* w, int64_t n, int64_t k, int64_t panel, bf16* out) {
  for (int64_t i = 0; i < panel_elements(k, true) / PANEL; i++)
    for (int64_t j = 0; j < PANEL; j++) {
      const int64_t row = panel * PANEL + j;
      out[(i / 2 * PANEL + j) * 2 + i % 2] = to_bf16(row < n && i < k ? to_float(w[row * k + i]) : 0.0f);
    }
}

// Multiply-adds of R rows with P panels over all of k.
template <int R, int P>
inline void accumulate(v16 (&acc)[R][P], const float* x, int64_t k, const float* w, int64_t stride) {
  for (int64_t i = 0; i < k; i++) {
    v16 column[P];
    for (int p = 0; p < P; p++) column[p] = load(w + p * stride + i * PANEL);
    for (int r = 0; r < R; r++) {
      const v16 value = splat(x[r * k + i]);
      for (int p = 0; p < P; p++) acc[r][p] = fma(column[p], value, acc[r][p]);
    }
  }
}

template <int R, int P>
inline void accumulate(v16 (&acc)[R][P], const float* x, int64_t k, const bf16* w, int64_t stride) {
  for (int64_t i = 0; i < k; i += 2) {
    v16 even[P], odd[P];
    for (int p = 0; p < P; p++) {
      const Pair pair = load_pair(w + p * stride + i * PANEL);
      even[p] = pair.even, odd[p] = pair.odd;
    }
    for (int r = 0; r < R; r++) {
      const v16 value = splat(x[r * k + i]);
      for (int p = 0; p < P; p++) acc[r][p] = fma(even[p], value, acc[r][p]);
    }
    if (i + 1 < k)
      for (int r = 0; r < R; r++) {
        const v16 value = splat(x[r * k + i + 1]);
        for (int p = 0; p < P; p++) acc[r][p] = fma(odd[p], value, acc[r][p]);
      }
  }
}

template <int R, int P, class W>
void tile(const Op& op, int64_t row, int64_t panel) {
  const int64_t stride = panel_elements(op.k, sizeof(W) == 2);
  v16 acc[R][P] = {};
  accumulate<R, P>(acc, op.x + row * op.k, op.k, (const W*)op.weight + panel * stride, stride);
  for (int p = 0; p < P; p++) {
    const int64_t column = (panel + p) * PANEL;
    const int64_t width = op.n - column < PANEL ? op.n - column : PANEL;
    v16 bias = {};
    if (op.bias) std::memcpy(&bias, op.bias + column, width * sizeof(float));
    for (int r = 0; r < R; r++) {
      const v16 y = acc[r][p] + bias;
      float* out = op.out + (row + r) * op.n + column;
      if (width == PANEL) store(out, y);
      else std::memcpy(out, &y, width * sizeof(float));
    }
  }
}

template <int P, class W>
void rows_tail(const Op& op, int64_t row, int64_t count, int64_t panel) {
  switch (count) {
    case 1: return tile<1, P, W>(op, row, panel);
    case 2: return tile<2, P, W>(op, row, panel);
    case 3: return tile<3, P, W>(op, row, panel);
#ifdef __AVX512F__
    case 4: return tile<4, P, W>(op, row, panel);
    case 5: return tile<5, P, W>(op, row, panel);
    case 6: return tile<6, P, W>(op, row, panel);
    case 7: return tile<7, P, W>(op, row, panel);
#endif
  }
}

template <int P, class W>
void columns(const Op& op, int64_t row, int64_t end, int64_t panel) {
  for (; row + ROWS <= end; row += ROWS) tile<ROWS, P, W>(op, row, panel);
  rows_tail<P, W>(op, row, end - row, panel);
}

template <class W>
void linear(const Op& op, int64_t rows, Team team) {
  // Few rows wait for memory, and multiply-adds keep x whole.
  if (sizeof(W) == 2 && rows >= AMX_ROWS && amx_permitted()) return amx_linear(op, rows, team);
  const int64_t panels = (op.n + PANEL - 1) / PANEL;
  const int64_t first = team.begin(panels), last = team.end(panels);
  for (int64_t row = 0; row < rows; row += ROW_BLOCK) {
    const int64_t end = row + ROW_BLOCK < rows ? row + ROW_BLOCK : rows;
    int64_t panel = first;
    for (; panel + PANELS <= last; panel += PANELS) columns<PANELS, W>(op, row, end, panel);
    for (; panel < last; panel++) columns<1, W>(op, row, end, panel);
  }
}

}  // namespace eh
