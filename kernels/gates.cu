// The two gates of a Gated DeltaNet head: how much of the error is learned, and how much of the state is kept.
// beta = sigmoid(b), g = A * softplus(a + dt), alpha = exp(g). The chunked rule sums g, so it is stored too.
#include "functions.cuh"

constexpr int FLIGHT = 20;  // planes on their way at once: those of 5120 elements

// two values from their planes, added ascending from zero; a plane that does not exist is zero, which adds nothing
__device__ inline void sum_planes(float (&total)[2], const float* __restrict__ p, int apart, int planes, long long stride) {
  total[0] = total[1] = 0.0f;
  for (int first = 0; first < planes; first += FLIGHT) {
    float some[FLIGHT][2];
#pragma unroll
    for (int f = 0; f < FLIGHT; ++f, p += stride) {
      const bool exists = first + f < planes;
      some[f][0] = exists ? p[0] : 0.0f, some[f][1] = exists ? p[apart] : 0.0f;
    }
#pragma unroll
    for (int f = 0; f < FLIGHT; ++f) total[0] = total[0] + some[f][0], total[1] = total[1] + some[f][1];
  }
}

__global__ void __launch_bounds__(128, 1)
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
  float ba_sum[2];
  sum_planes(ba_sum, row + h, HV, planes, stride);
  const float decay = A[h] * lane::softplus(ba_sum[1] + dt[h]);
  beta[i] = lane::sigmoid(ba_sum[0]);
  g[i] = decay;
  alpha[i] = lane::exp(decay);
}
