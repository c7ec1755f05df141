// The matrix unit's instructions in plain C++, so that the kernels over them are tested on any CPU.
#pragma once

#include <cstdint>
#include <cstring>

struct EmulatedTile {
  uint8_t bytes[16][64];
};
static thread_local EmulatedTile emulated_tiles[8];

inline void emulated_load(int tile, const void* base, int64_t stride) {
  for (int row = 0; row < 16; row++) std::memcpy(emulated_tiles[tile].bytes[row], (const char*)base + row * stride, 64);
}

inline void emulated_store(int tile, void* base, int64_t stride) {
  for (int row = 0; row < 16; row++) std::memcpy((char*)base + row * stride, emulated_tiles[tile].bytes[row], 64);
}

inline float emulated_float(const uint8_t* bytes) {
  uint16_t half;
  std::memcpy(&half, bytes, 2);
  const uint32_t bits = uint32_t(half) << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

// c[m][n] += sum over pairs k and i of a[m][2k + i] * b[k][2n + i] (Intel's manual, TDPBF16PS).
inline void emulated_multiply(int c, int a, int b) {
  for (int m = 0; m < 16; m++)
    for (int k = 0; k < 16; k++)
      for (int n = 0; n < 16; n++) {
        float sum;
        std::memcpy(&sum, emulated_tiles[c].bytes[m] + 4 * n, 4);
        for (int i = 0; i < 2; i++)
          sum += emulated_float(emulated_tiles[a].bytes[m] + 4 * k + 2 * i) *
                 emulated_float(emulated_tiles[b].bytes[k] + 4 * n + 2 * i);
        std::memcpy(emulated_tiles[c].bytes[m] + 4 * n, &sum, 4);
      }
}

#define _tile_loadconfig(config) ((void)(config))
#define _tile_release() ((void)0)
#define _tile_zero(tile) std::memset(&emulated_tiles[tile], 0, sizeof(EmulatedTile))
#define _tile_loadd(tile, base, stride) emulated_load(tile, base, stride)
#define _tile_stored(tile, base, stride) emulated_store(tile, base, stride)
#define _tile_dpbf16ps(c, a, b) emulated_multiply(c, a, b)
