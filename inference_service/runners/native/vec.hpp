// Vectors of 16 numbers through the compiler's vector extension: one source for AVX-512, AVX2 and NEON.
#pragma once

#include <cstdint>
#include <cstring>
#include <initializer_list>
#if defined(__FMA__)
#include <immintrin.h>
#endif

namespace eh {

typedef float v16 __attribute__((vector_size(64)));
typedef int32_t i16x __attribute__((vector_size(64)));
typedef uint32_t u16x __attribute__((vector_size(64)));
typedef uint16_t h16 __attribute__((vector_size(32)));

typedef float v8 __attribute__((vector_size(32)));
typedef float v4 __attribute__((vector_size(16)));

struct bf16 {
  uint16_t bits;
};

inline v16 splat(float value) { return value - v16{}; }  // x - 0 is x, and folds away: x + 0 does not

inline v16 load(const float* p) {
  v16 v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

inline v16 load(const bf16* p) {
  h16 h;
  std::memcpy(&h, p, sizeof h);
  return (v16)(__builtin_convertvector(h, u16x) << 16);
}

// Two neighbours of a pair, for 16 lanes.
struct Pair {
  v16 even, odd;
};

inline Pair load_pair(const bf16* p) {
  u16x both;
  std::memcpy(&both, p, sizeof both);
  return {(v16)(both << 16), (v16)(both & 0xffff0000u)};
}

// a * b + c, rounded once where the CPU can. Never left to the compiler, which fuses here and not there: results that must
// be equal come from differently unrolled code.
inline v16 fma(v16 a, v16 b, v16 c) {
#if defined(__AVX512F__)
  return (v16)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
  v8 x[2], y[2], z[2];
  std::memcpy(x, &a, sizeof a), std::memcpy(y, &b, sizeof b), std::memcpy(z, &c, sizeof c);
  for (int i = 0; i < 2; i++) z[i] = (v8)_mm256_fmadd_ps((__m256)x[i], (__m256)y[i], (__m256)z[i]);
  std::memcpy(&c, z, sizeof c);
  return c;
#else
  return a * b + c;
#endif
}

inline void store(float* p, v16 v) { std::memcpy(p, &v, sizeof v); }

inline float to_float(float x) { return x; }

inline float to_float(bf16 x) {
  uint32_t bits = uint32_t(x.bits) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// Rounds to nearest even; a NaN stays one.
inline bf16 to_bf16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  if (x != x) return {uint16_t((bits >> 16) | 0x40)};
  return {uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16)};
}

// Rounds `count` numbers, 16 at a time. (A NaN may become another NaN or an infinity here.)
inline void narrow(const float* from, int64_t count, bf16* to) {
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) {
#if defined(__AVX512BF16__)
    const __m256bh half = _mm512_cvtneps_pbh((__m512)load(from + i));
#else
    u16x bits;
    std::memcpy(&bits, from + i, sizeof bits);
    bits = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    const h16 half = __builtin_convertvector(bits, h16);
#endif
    std::memcpy(to + i, &half, sizeof half);
  }
  for (; i < count; i++) to[i] = to_bf16(from[i]);
}

inline void assign(float& to, float x) { to = x; }
inline void assign(bf16& to, float x) { to = to_bf16(x); }


template <class Combine>
inline float fold(v16 v, Combine combine) {
  const v8 a = combine(__builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7),
                       __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15));
  const v4 b = combine(__builtin_shufflevector(a, a, 0, 1, 2, 3), __builtin_shufflevector(a, a, 4, 5, 6, 7));
  const v4 c = combine(b, __builtin_shufflevector(b, b, 2, 3, 2, 3));
  return combine(c, __builtin_shufflevector(c, c, 1, 1, 1, 1))[0];
}

inline float sum(v16 v) {
  return fold(v, [](auto a, auto b) { return a + b; });
}

inline float max(v16 v) {
  return fold(v, [](auto a, auto b) { return a > b ? a : b; });
}

// e^x within 2 ulp for x in [-87, 88]; smaller x give e^-87, NaN stays NaN. Polynomial of Cephes' expf.
inline v16 exp(v16 x) {
  x = x < splat(-87.0f) ? splat(-87.0f) : x > splat(88.0f) ? splat(88.0f) : x;
  const v16 shifted = fma(x, splat(1.44269504088896341f), splat(12582912.0f));  // 1.5 * 2^23: rounds to an integer
  const v16 n = shifted - splat(12582912.0f);
  const v16 r = fma(n, splat(2.12194440e-4f), fma(n, splat(-0.693359375f), x));
  v16 y = splat(1.9875691500e-4f);
  for (float c : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f})
    y = fma(y, r, splat(c));
  y = fma(y, r * r, r + splat(1.0f));
  const i16x power = ((i16x)shifted - (i16x)splat(12582912.0f) + 127) << 23;
  return y * (v16)power;
}

inline float exp(float x) { return exp(splat(x))[0]; }

}  // namespace eh
