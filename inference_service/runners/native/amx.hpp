// y[T, N] = x[T, K] w[N, K]^T in bfloat16 on the CPU's matrix unit (AMX), sums in float32.
//
// A packed panel is what the unit wants: 16 rows of 16 outputs by 2 k make one tile. Two row tiles by two panels fill
// the eight tile registers: 0 to 3 hold sums, 4 and 5 rows of x, 6 and 7 weights.
#pragma once

#if defined(__AMX_BF16__) && !defined(EH_EMULATE_AMX)
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <vector>

#include "program.hpp"
#include "vec.hpp"

namespace eh {

constexpr int TILE_K = 32;  // k in one tile

#ifdef __AMX_BF16__

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

static const TileConfig TILE_CONFIG;

// Asks the system for the unit, once for the process. False: it has none to give.
inline bool amx_permitted() {
#ifdef EH_EMULATE_AMX
  return true;
#else
  constexpr long request_permission = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  static const bool permitted = syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
  return permitted;
#endif
}

// The compilers' tile instructions do not say which memory they read and write: keeps their neighbours in place.
inline void memory_fence() { asm volatile("" ::: "memory"); }

// Where the tiles of a product lie, in bytes. a: rows of 32 numbers; c: sums of 16 x 16.
struct Tiles {
  const void* a;
  int64_t a_row, a_tile;  // from a row to the next, from a row tile to the next; a step is 64
  int64_t b_row, b_panel;
  float* c;
  int64_t c_row, c_tile, c_panel;
  int64_t steps;
};

// c = a b for R row tiles by P panels. b(step): the first panel's tile of 16 pairs by 16 columns.
template <int R, int P, class B>
inline void amx_tiles(const Tiles& t, B b) {
  _tile_zero(0);
  if constexpr (P > 1) _tile_zero(1);
  if constexpr (R > 1) _tile_zero(2);
  if constexpr (R > 1 && P > 1) _tile_zero(3);
  for (int64_t step = 0; step < t.steps; step++) {
    const char *a = (const char*)t.a + step * 64, *panel = (const char*)b(step);
    _tile_loadd(4, a, t.a_row);
    if constexpr (R > 1) _tile_loadd(5, a + t.a_tile, t.a_row);
    _tile_loadd(6, panel, t.b_row);
    if constexpr (P > 1) _tile_loadd(7, panel + t.b_panel, t.b_row);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (P > 1) _tile_dpbf16ps(1, 4, 7);
    if constexpr (R > 1) _tile_dpbf16ps(2, 5, 6);
    if constexpr (R > 1 && P > 1) _tile_dpbf16ps(3, 5, 7);
  }
  char* c = (char*)t.c;
  _tile_stored(0, c, t.c_row);
  if constexpr (P > 1) _tile_stored(1, c + t.c_panel, t.c_row);
  if constexpr (R > 1) _tile_stored(2, c + t.c_tile, t.c_row);
  if constexpr (R > 1 && P > 1) _tile_stored(3, c + t.c_tile + t.c_panel, t.c_row);
  memory_fence();
}

template <int R, int P>
inline void amx_block(const Op& op, const bf16* x, int64_t ldx, int64_t row, int64_t rows, int64_t panel) {
  alignas(64) float sums[R * P * 256];
  const int64_t stride = 16 * ldx;
  const bf16* w = (const bf16*)op.weight + panel * stride;
  const Tiles tiles{x, ldx * 2, ldx * 32, 64, stride * 2, sums, 64, P * 1024, 1024, ldx / TILE_K};
  amx_tiles<R, P>(tiles, [=](int64_t step) { return w + step * TILE_K * 16; });
  for (int p = 0; p < P; p++) {
    const int64_t column = (panel + p) * 16, width = op.n - column < 16 ? op.n - column : 16;
    v16 bias = {};
    if (op.bias) std::memcpy(&bias, op.bias + column, width * sizeof(float));
    for (int64_t r = 0; r < rows; r++) {
      const v16 y = load(sums + ((r / 16) * P + p) * 256 + r % 16 * 16) + bias;
      float* out = op.out + (row + r) * op.n + column;
      if (width == 16) store(out, y);
      else std::memcpy(out, &y, width * sizeof(float));
    }
  }
}

// Rows [row, row + rows) over the panels [first, last). x: those rows, tiles complete, [.., ldx].
template <int R>
inline void amx_rows(const Op& op, const bf16* x, int64_t ldx, int64_t row, int64_t rows, int64_t first, int64_t last) {
  int64_t panel = first;
  for (; panel + 2 <= last; panel += 2) amx_block<R, 2>(op, x, ldx, row, rows, panel);
  if (panel < last) amx_block<R, 1>(op, x, ldx, row, rows, panel);
}

inline void amx_linear(const Op& op, int64_t rows, Team team) {
  constexpr int64_t block = 256;  // rows of x that a thread converts and keeps near: weights are read once for them
  thread_local std::vector<bf16> x;
  const int64_t ldx = (op.k + TILE_K - 1) / TILE_K * TILE_K, panels = (op.n + 15) / 16;
  const int64_t first = team.begin(panels), last = team.end(panels);
  _tile_loadconfig(&TILE_CONFIG);
  for (int64_t begin = 0; begin < rows; begin += block) {
    const int64_t count = begin + block < rows ? block : rows - begin;
    x.assign((count + 15) / 16 * 16 * ldx, bf16{0});
    for (int64_t r = 0; r < count; r++) narrow(op.x + (begin + r) * op.k, op.k, x.data() + r * ldx);
    memory_fence();
    // Panels outside, rows inside: a pair of panels is read from memory once for all rows of the block.
    for (int64_t panel = first; panel < last; panel += 2) {
      const int64_t end = panel + 2 < last ? panel + 2 : last;
      for (int64_t r = 0; r < count; r += 32) {
        const int64_t left = count - r < 32 ? count - r : 32;
        if (left > 16) amx_rows<2>(op, x.data() + r * ldx, ldx, begin + r, left, panel, end);
        else amx_rows<1>(op, x.data() + r * ldx, ldx, begin + r, left, panel, end);
      }
    }
  }
  _tile_release();
}

#else

inline bool amx_permitted() { return false; }
inline void amx_linear(const Op&, int64_t, Team) {}

#endif

}  // namespace eh
