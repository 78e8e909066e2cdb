// Rows in, activation codes out: what every quantising kernel shares.
// A row of codes is [WORDS][K] int8, its scales are [K / 32] float32. WORDS 1 is A8, WORDS 2 is A15 (hi, then lo). Codes lie by
// rows, or by columns (columns.cuh) as a streaming projection reads them.
#pragma once
#include "columns.cuh"

namespace lane {

constexpr int BLOCK = 32;  // elements that share one scale
constexpr float SMALLEST_SCALE = 1.1754943508222875e-38f;  // 2^-126: a scale is never denormal

// N neighbouring floats of a row by 16-byte loads; zeros where the lane lies behind the end of the row.
template <int N>
__device__ inline void load_row(float (&v)[N], const float* __restrict__ p, bool inside) {
  static_assert(N % 4 == 0, "load_row: a lane owns whole groups of four floats");
#pragma unroll
  for (int i = 0; i < N; i += 4) {
    const uint4 four = inside ? load16(p + i) : uint4{0, 0, 0, 0};
    v[i] = from_bits(four.x), v[i + 1] = from_bits(four.y), v[i + 2] = from_bits(four.z), v[i + 3] = from_bits(four.w);
  }
}

template <int N>
__device__ inline void store_row(float* __restrict__ p, const float (&v)[N]) {
  static_assert(N % 4 == 0, "store_row: a lane owns whole groups of four floats");
#pragma unroll
  for (int i = 0; i < N; i += 4) store16(p + i, uint4{bits(v[i]), bits(v[i + 1]), bits(v[i + 2]), bits(v[i + 3])});
}

// The sum of split-K planes, ascending from zero; with PLANED false there is one plane and it is taken as it is.
// FLIGHT planes are loaded before the first of them is added; one that does not exist is zeros, which add nothing.
template <bool PLANED, int FLIGHT, int N>
__device__ inline void load_planes(float (&v)[N], const float* __restrict__ p, bool inside, int planes,
                                   long long plane_stride) {
  if constexpr (PLANED) {
#pragma unroll
    for (int i = 0; i < N; ++i) v[i] = 0.0f;
    for (int first = 0; first < planes; first += FLIGHT) {
      float some[FLIGHT][N];
#pragma unroll
      for (int f = 0; f < FLIGHT; ++f, p += plane_stride) load_row(some[f], p, inside && first + f < planes);
#pragma unroll
      for (int f = 0; f < FLIGHT; ++f)
#pragma unroll
        for (int i = 0; i < N; ++i) v[i] = v[i] + some[f][i];
    }
  } else {
    load_row(v, p, inside);
  }
}

// four bytes in a word: the lowest address holds the lowest byte
__device__ inline unsigned pack4(const int* q) {
  return static_cast<unsigned>(q[0] & 255) | static_cast<unsigned>(q[1] & 255) << 8 |
         static_cast<unsigned>(q[2] & 255) << 16 | static_cast<unsigned>(q[3] & 255) << 24;
}

// N neighbouring bytes by one store
template <int N>
__device__ inline void store_bytes(signed char* __restrict__ p, const int (&q)[N]) {
  if constexpr (N == 1) {
    *p = static_cast<signed char>(q[0]);
  } else if constexpr (N == 2) {
    *reinterpret_cast<unsigned short*>(p) = static_cast<unsigned short>((q[0] & 255) | (q[1] & 255) << 8);
  } else if constexpr (N == 4) {
    *reinterpret_cast<unsigned*>(p) = pack4(q);
  } else {
    store8(p, uint2{pack4(q), pack4(q + 4)});
  }
}

// Where a row's codes and scales go; columns: of how many rows they lie by columns, or 0.
struct CodeRow {
  signed char* codes;
  float* scales;
  long long row;
  int columns;
};

// Quantises the N elements a lane owns at column k; 32 / N neighbouring lanes hold one block. All lanes of the warp
// must call it. A block that is not finite gets codes 0 and scale NaN, so that no fault is quantised away.
template <int WORDS, int N>
__device__ inline void store_codes(const float (&y)[N], int k, int K, const CodeRow& to) {
  static_assert(WORDS == 1 || WORDS == 2, "activation codes are one int8 word (A8) or two (A15)");
  static_assert(N == 1 || N == 2 || N == 4 || N == 8, "a lane owns 1, 2, 4 or 8 neighbours of a block of 32");
  constexpr float TOP = WORDS == 1 ? 127.0f : 16256.0f;
  float amax = 0.0f;
#pragma unroll
  for (int i = 0; i < N; ++i) amax = maximum_size(amax, fabsf(y[i]));
#pragma unroll
  for (int step = 1; step < BLOCK / N; step *= 2) amax = maximum_size(amax, __shfl_xor_sync(0xffffffffu, amax, step));
  if (k >= K) return;

  const bool finite = is_finite(amax);
  const float scale = maximum_size(Divisor(TOP).of(amax), SMALLEST_SCALE);
  float scaled[N];
#pragma unroll
  for (int i = 0; i < N; ++i) scaled[i] = y[i];
  Divisor(scale).divide(scaled);
  int hi[N], lo[N];
#pragma unroll
  for (int i = 0; i < N; ++i) {
    // never beyond TOP: |y| <= amax, and scale is at least amax / TOP to half a unit in its last place
    const int q = finite ? static_cast<int>(rintf(scaled[i])) : 0;
    hi[i] = WORDS == 1 ? q : (q + 64) >> 7;
    lo[i] = q - 128 * hi[i];
  }
  const long long lines = to.columns ? to.columns * 16LL : K;  // bytes from a word to the next
  signed char* at = to.codes + (to.columns ? k / 16 * WORDS * lines + to.row * 16 + k % 16 : to.row * WORDS * lines + k);
  store_bytes(at, hi);
  if constexpr (WORDS == 2) store_bytes(at + lines, lo);
  if (k % BLOCK != 0) return;
  const int row = static_cast<int>(to.row), block = k / BLOCK;
  const long long place = to.columns ? 1LL * block * scale_rows(to.columns) + place_of_scale(row) : to.row * (K / BLOCK) + block;
  to.scales[place] = finite ? scale : from_bits(QUIET_NAN);
}

}  // namespace lane
