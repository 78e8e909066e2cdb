// Split-K reduction: y = the planes of a split projection, added ascending from zero.
#include "device.cuh"

__global__ void __launch_bounds__(256)
split_sum(const float* __restrict__ x /* [planes, rows, N] */, int x_pitch, int planes, float* __restrict__ y /* [rows, N] */,
          int y_pitch, int rows, int N) {
  const long long row = blockIdx.x;
  const int n = blockIdx.y * blockDim.x + threadIdx.x;
  if (n >= N) return;
  float total = 0.0f;
  for (int plane = 0; plane < planes; ++plane) total = total + x[(static_cast<long long>(plane) * rows + row) * x_pitch + n];
  y[row * y_pitch + n] = total;
}
