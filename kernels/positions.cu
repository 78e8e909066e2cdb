// Positions of a chunk's rows: row t * B + b of sequence b stands at start[b] + t.
#include "device.cuh"

__global__ void __launch_bounds__(128)
set_positions(const int* __restrict__ start /* [B] */, int* __restrict__ positions /* [T * B] */, int B, int T) {
  lane::overlap_launches();
  const int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row < T * B) positions[row] = start[row % B] + row / B;
}
