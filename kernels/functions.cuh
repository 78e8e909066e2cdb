// exp, log1p, sigmoid, silu, softplus from correctly rounded operations only: the same bits from every compiler and
// on every device. Orders and constants are ARITHMETIC.md's; errors in ulp are measured by locks/test_functions.py.
#pragma once
#include "device.cuh"

namespace lane {

// exp(x) = head * scale, the product rounded once: near the bottom scale alone carries the result below the normal
// range, so that silu can multiply by x first and keep its digits.
struct ExpParts {
  float head, scale;
};

// 2^n for -126 <= n <= 127
__device__ inline float power_of_two(int n) { return from_bits(static_cast<unsigned>(n + 127) << 23); }

__device__ inline ExpParts exp_parts(float x) {
  // above 89 the result is infinite; below -120 also x * exp(x) rounds to zero. A NaN passes both comparisons.
  const float t = x > 89.0f ? 89.0f : x < -120.0f ? -120.0f : x;
  const float n = rintf(t * 0x1.715476p+0f);
  float r = fmaf(n, -0x1.62e43p-1f, t);
  r = fmaf(n, 0x1.05c61p-29f, r);
  // relative minimax on |r| <= ln(2)/2, error 2^-28.2
  float p = 0x1.6ac6a2p-10f;
  p = fmaf(p, r, 0x1.123ddap-7f);
  p = fmaf(p, r, 0x1.555858p-5f);
  p = fmaf(p, r, 0x1.55548cp-3f);
  p = fmaf(p, r, 0x1.fffffcp-2f);
  p = fmaf(p, r, 1.0f);
  p = fmaf(p, r, 1.0f);
  const int k = x == x ? static_cast<int>(n) : 0;
  const int half = k >> 1;
  return {p * power_of_two(half), power_of_two(k - half)};
}

__device__ inline float exp(float x) {
  const ExpParts e = exp_parts(x);
  return e.head * e.scale;
}

__device__ inline float log1p(float x) {
  const float u = 1.0f + x;
  // u * 2^-n lies in [0.75, 1.5); for n = 0 the reduced argument m is x itself, without the rounding of u
  const unsigned n23 = (bits(u) - bits(0.75f)) & 0xff800000u;
  const float n = static_cast<float>(static_cast<int>(n23)) * 0x1p-23f;
  const float s = from_bits(bits(4.0f) - n23) * 0.25f;
  const float m = fmaf(x, s, s - 1.0f);
  // (log1p(m) - m) / m^2, relative minimax for log1p on [-0.25, 0.5], error 2^-27.4
  float q = -0x1.796b04p-5f;
  q = fmaf(q, m, 0x1.b21780p-4f);
  q = fmaf(q, m, -0x1.0e9e46p-3f);
  q = fmaf(q, m, 0x1.28798ep-3f);
  q = fmaf(q, m, -0x1.54d606p-3f);
  q = fmaf(q, m, 0x1.9966d4p-3f);
  q = fmaf(q, m, -0x1.000082p-2f);
  q = fmaf(q, m, 0x1.5555acp-2f);
  q = fmaf(q, m, -0x1p-1f);
  const float y = fmaf(n, 0x1.62e43p-1f, fmaf(q, m * m, m));
  const float infinity = from_bits(0x7f800000u);
  if (u > 0.0f) return u < infinity ? y : infinity;
  return u == 0.0f ? -infinity : from_bits(0x7fc00000u);
}

__device__ inline float sigmoid(float x) {
  const float e = exp(-fabsf(x));
  return (x >= 0.0f ? 1.0f : e) / (1.0f + e);
}

// x * sigmoid(x); on the left the scale of the exponential comes last, so that it rounds once. silu(-inf) is -0.
__device__ inline float silu(float x) {
  const ExpParts e = exp_parts(-fabsf(x));
  const float d = 1.0f + e.head * e.scale;
  const bool left = x < 0.0f;
  const float t = x < -120.0f ? -120.0f : x;
  // one quotient for both sides: lanes of both meet in every warp, and a branch would make them wait for each other
  const float quotient = (left ? t * e.head : x) / d;
  return left ? quotient * e.scale : quotient;
}

__device__ inline float softplus(float x) { return (x > 0.0f ? x : 0.0f) + log1p(exp(-fabsf(x))); }

}  // namespace lane
