// The two gates of a Gated DeltaNet head: how much of the error is learned, and how much of the state is kept.
// beta = sigmoid(b), g = A * softplus(a + dt), alpha = exp(g). The chunked rule sums g, so it is stored too.
#include "functions.cuh"

__global__ void __launch_bounds__(128)
gates(const float* __restrict__ ba /* [rows, 2, HV]: b, then a */, int ba_pitch, const float* __restrict__ A /* [HV] */,
      const float* __restrict__ dt /* [HV] */, float* __restrict__ beta /* [rows, HV] */,
      float* __restrict__ g /* [rows, HV] */, float* __restrict__ alpha /* [rows, HV] */, int rows, int HV) {
  lane::overlap_launches();
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= rows * HV) return;
  const int h = i % HV;
  const float* row = ba + static_cast<long long>(i / HV) * ba_pitch;
  const float decay = A[h] * lane::softplus(row[HV + h] + dt[h]);
  beta[i] = lane::sigmoid(row[h]);
  g[i] = decay;
  alpha[i] = lane::exp(decay);
}
