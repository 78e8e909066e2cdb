// z = x + y, row by row, each with its own pitch. A thread does four neighbours.
#include "codes.cuh"

__global__ void __launch_bounds__(128)
add(const float* __restrict__ x /* [rows, K] */, int x_pitch, const float* __restrict__ y /* [rows, K] */, int y_pitch,
    float* __restrict__ z /* [rows, K] */, int z_pitch, int K) {
  const long long row = blockIdx.x;
  const int k = (blockIdx.y * blockDim.x + threadIdx.x) * 4;
  if (k >= K) return;
  float a[4], b[4];
  lane::load_row(a, x + row * x_pitch + k, true);
  lane::load_row(b, y + row * y_pitch + k, true);
#pragma unroll
  for (int i = 0; i < 4; ++i) a[i] = a[i] + b[i];
  lane::store_row(z + row * z_pitch + k, a);
}
