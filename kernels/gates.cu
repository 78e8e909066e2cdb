// The two gates of a Gated DeltaNet head: how much of the error is learned, and how much of the state is kept.
// beta = sigmoid(b), g = A * softplus(a + dt), alpha = exp(g). The chunked rule sums g, so it is stored too.
#include "functions.cuh"

constexpr int FLIGHT = 10;  // planes on their way at once

// one value from its planes, added ascending from zero; a plane that does not exist is zero, which adds nothing
__device__ inline float sum_planes(const float* __restrict__ p, int planes, long long stride) {
  float total = 0.0f;
  for (int first = 0; first < planes; first += FLIGHT) {
    float some[FLIGHT];
#pragma unroll
    for (int f = 0; f < FLIGHT; ++f, p += stride) some[f] = first + f < planes ? *p : 0.0f;
#pragma unroll
    for (int f = 0; f < FLIGHT; ++f) total = total + some[f];
  }
  return total;
}

__global__ void __launch_bounds__(128)
gates(const float* __restrict__ ba /* [planes, rows, 2, HV]: b, then a */, int ba_pitch, int planes,
      const float* __restrict__ A /* [HV] */, const float* __restrict__ dt /* [HV] */,
      float* __restrict__ beta /* [rows, HV] */, float* __restrict__ g /* [rows, HV] */,
      float* __restrict__ alpha /* [rows, HV] */, int rows, int HV) {
  lane::overlap_launches();
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= rows * HV) return;
  const int h = i % HV;
  const float* row = ba + static_cast<long long>(i / HV) * ba_pitch;
  const long long stride = static_cast<long long>(rows) * ba_pitch;
  const float b = sum_planes(row + h, planes, stride), a = sum_planes(row + HV + h, planes, stride);
  const float decay = A[h] * lane::softplus(a + dt[h]);
  beta[i] = lane::sigmoid(b);
  g[i] = decay;
  alpha[i] = lane::exp(decay);
}
