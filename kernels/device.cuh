#pragma once
// What a kernel needs beyond CUDA C++, with two bodies: PTX on a GPU, models on the host (harness/host/runtime).
// No kernel mentions PTX or the host. mma and ldmatrix fragments are laid out as the PTX ISA says.

#ifdef LANELOCK_HOST
#include "cuda.h"
#endif

namespace lane {

__device__ __forceinline__ unsigned bits(float x) { return __float_as_uint(x); }
__device__ __forceinline__ float from_bits(unsigned x) { return __uint_as_float(x); }
__device__ __forceinline__ bool is_nan(float x) { return x != x; }

// The one maximum: a NaN wins, and of equal numbers (two zeros) the first. fmaxf would drop the NaN, and differs
// between compilers on zeros.
__device__ __forceinline__ float maximum(float a, float b) { return is_nan(a) ? a : is_nan(b) || b > a ? b : a; }

constexpr float LARGEST = 3.4028234663852886e38f;
constexpr unsigned QUIET_NAN = 0x7fc00000u;

__device__ __forceinline__ bool is_finite(float x) { return fabsf(x) <= LARGEST; }

// The divisor of a norm: NaN where the sum of squares overflowed, for an infinite one would make the row zeros.
__device__ __forceinline__ float finite_root(float x) { return is_finite(x) ? sqrtf(x) : from_bits(QUIET_NAN); }

}  // namespace lane

namespace lane {

// Of N sums over a warp, N a power of two, the lanes l * N / 32 own one each: which sum value i of lane l belongs to.
template <int N>
__device__ __forceinline__ int scattered(int i, int l) {
  static_assert(N <= 32 && (N & (N - 1)) == 0, "scattered: a power of two of sums that the lanes can share");
  return i ^ (l * N / 32);
}

}  // namespace lane

#ifdef LANELOCK_HOST
#include "lane.h"
#else
#include "device_ptx.cuh"
#endif

namespace lane {

// Of N sums over a warp the one that lane l owns: value i of the lane belongs to sum scattered(i, l) if PLACED, else to sum i.
template <bool PLACED, int N>
__device__ __forceinline__ float warp_sum_owned(const float (&v)[N]) {
  float set[1][N];
#pragma unroll
  for (int i = 0; i < N; ++i) set[0][i] = v[i];
  warp_sum_items<PLACED>(set);
  return set[0][0];
}

// First in a kernel whose entry is `dependent`: its blocks start while the launch ahead ends, and read nothing before it has.
__device__ __forceinline__ void overlap_launches() { admit_next_launch(), await_launches_before(); }

// Several quotients by one divisor, every one rounded as a division rounds it, for one reciprocal and no branch an element.
// With r = 1 / d rounded and q within a unit of x / d, q + (x - q d) r, fused, is x / d rounded to nearest wherever the
// remainder is exact (Markstein 1990). x r lies within 1.5 units: the first step makes q of it, the second the quotient.
// Where a remainder may be subnormal or a quotient leaves the range, all of them are divided. A division of its own ends
// behind a branch, where the next one cannot begin before it: a norm and its quantiser have sixteen of them in a row.
struct Divisor {
  float d, r;

  __device__ explicit Divisor(float d) : d(d), r(1.0f / d) {}

  template <int N>
  __device__ __forceinline__ void divide(float (&x)[N]) const {
    float q[N];
    bool plain = (d >= 0x1p-126f) & (d <= 0x1p125f);  // &, | and not &&, ||, which would branch
#pragma unroll
    for (int i = 0; i < N; ++i) {
      q[i] = x[i] * r;
      const float size = fabsf(x[i]), quotient = fabsf(q[i]);
      plain &= (x[i] == 0.0f) | ((size >= 0x1p-100f) & (quotient >= 0x1p-100f) & (quotient <= 0x1p100f));
    }
    if (plain) {
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float near = fmaf(fmaf(-q[i], d, x[i]), r, q[i]);
        const float quotient = fmaf(fmaf(-near, d, x[i]), r, near);
        x[i] = x[i] == 0.0f ? q[i] : quotient;  // keeps the sign of a zero
      }
    } else {
#pragma unroll
      for (int i = 0; i < N; ++i) x[i] = x[i] / d;
    }
  }

  __device__ __forceinline__ float of(float x) const {
    float one[1] = {x};
    divide(one);
    return one[0];
  }
};

}  // namespace lane

struct half_t {
  unsigned short bits;
};
struct e4m3_t {
  unsigned char bits;
};

namespace lane {

// ---- float16: to_half rounds to nearest even, overflows to infinity and keeps NaN

__device__ __forceinline__ float to_float(half_t h) {
#if !defined(LANELOCK_HOST)
  return ptx::half_to_float(h.bits);
#elif defined(__FLT16_MANT_DIG__) && !defined(LANELOCK_SOFT_HALF)
  return static_cast<float>(__builtin_bit_cast(_Float16, h.bits));
#else
  const unsigned sign = (h.bits & 0x8000u) << 16, magnitude = h.bits & 0x7FFFu;
  if (magnitude >= 0x7C00u) return from_bits(sign | 0x7F800000u | (magnitude & 0x3FFu ? 0x400000u : 0u));
  // as a float with the exponent 112 too small, then scaled: exact, also for subnormals
  return from_bits(sign | bits(from_bits(magnitude << 13) * 0x1p112f));
#endif
}

__device__ __forceinline__ half_t to_half(float x) {
#if !defined(LANELOCK_HOST)
  return {ptx::float_to_half(x)};
#elif defined(__FLT16_MANT_DIG__) && !defined(LANELOCK_SOFT_HALF)
  return {__builtin_bit_cast(unsigned short, static_cast<_Float16>(x))};
#else
  const unsigned sign = bits(x) >> 16 & 0x8000u, magnitude = bits(x) & 0x7FFFFFFFu;
  unsigned code;
  if (magnitude > 0x7F800000u) code = 0x7E00u;
  else if (magnitude >= 0x477FF000u) code = 0x7C00u;  // 65520 and above round to infinity
  else if (magnitude < 0x38800000u) code = bits(from_bits(magnitude) + 0.5f) - 0x3F000000u;  // a multiple of 2^-24
  else code = (magnitude - 0x38000000u + 0xFFFu + (magnitude >> 13 & 1u)) >> 13;
  return {static_cast<unsigned short>(sign | code)};
#endif
}

// two at once, the first in the low half
__device__ __forceinline__ unsigned to_halves(float x, float y) {
#if !defined(LANELOCK_HOST)
  return ptx::floats_to_halves(x, y);
#else
  return to_half(x).bits | static_cast<unsigned>(to_half(y).bits) << 16;
#endif
}

// ---- e4m3: nearest even, saturating to 448, NaN by 0x7F

__device__ __forceinline__ float to_float(e4m3_t c) {
  if ((c.bits & 0x7Fu) == 0x7Fu) return from_bits(0x7FC00000u);
  // the exponent lies 120 lower than a float's: exact, also for subnormals
  const float magnitude = from_bits((c.bits & 0x7Fu) << 20) * 0x1p120f;
  return from_bits(bits(magnitude) | (c.bits & 0x80u) << 24);
}

__device__ __forceinline__ e4m3_t to_e4m3(float x) {
#if !defined(LANELOCK_HOST) && __CUDA_ARCH__ >= 890
  return {ptx::float_to_e4m3(x)};
#else
  const unsigned sign = bits(x) >> 24 & 0x80u, magnitude = bits(x) & 0x7FFFFFFFu;
  unsigned code;
  if (magnitude > 0x7F800000u) return {0x7F};
  if (magnitude >= 0x43E00000u) code = 0x7Eu;                                                   // 448 and above
  else if (magnitude < 0x3C800000u) code = bits(from_bits(magnitude) + 16384.0f) - 0x46800000u;  // a multiple of 2^-9
  else code = (magnitude - 0x3C000000u + 0x7FFFFu + (magnitude >> 20 & 1u)) >> 20;
  return {static_cast<unsigned char>(sign | code)};
#endif
}

// ---- loads and stores that convert, so that a kernel can be a template on the type of a state

__device__ __forceinline__ float load(const float* p) { return *p; }
__device__ __forceinline__ float load(const half_t* p) { return to_float(*p); }
__device__ __forceinline__ float load(const e4m3_t* p) { return to_float(*p); }
__device__ __forceinline__ void store(float* p, float x) { *p = x; }
__device__ __forceinline__ void store(half_t* p, float x) { *p = to_half(x); }
__device__ __forceinline__ void store(e4m3_t* p, float x) { *p = to_e4m3(x); }

}  // namespace lane
