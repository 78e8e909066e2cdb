// Memory as fast as it goes: what the speed of every streaming kernel is measured against.
#include "device.cuh"

constexpr int AHEAD = 8;  // independent loads of a thread before the first use

// Reads a buffer once. y[b] is the xor of all words that block b reads, so that no load can be left out.
__global__ void __launch_bounds__(512)
memory_read(const unsigned* __restrict__ x /* [vectors, 4] */, unsigned* __restrict__ y /* [blocks] */, long long vectors) {
  const long long step = static_cast<long long>(gridDim.x) * blockDim.x;
  unsigned sum = 0;
  for (long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; i < vectors; i += step * AHEAD) {
    uint4 v[AHEAD] = {};
#pragma unroll
    for (int j = 0; j < AHEAD; ++j)
      if (i + j * step < vectors) v[j] = lane::load16(x + (i + j * step) * 4);
#pragma unroll
    for (int j = 0; j < AHEAD; ++j) sum ^= v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
  }
  SHARED(unsigned, sums, [16]);
#pragma unroll
  for (int distance = 16; distance; distance /= 2) sum ^= __shfl_xor_sync(0xFFFFFFFFu, sum, distance);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x) return;
  for (unsigned w = 1; w < blockDim.x / 32; ++w) sum ^= sums[w];
  y[blockIdx.x] = sum;
}

// Reads and writes a buffer once, in place: every word becomes its complement, so that two launches restore it.
__global__ void __launch_bounds__(512)
memory_update(unsigned* __restrict__ x /* [vectors, 4] */, long long vectors) {
  const long long step = static_cast<long long>(gridDim.x) * blockDim.x;
  for (long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; i < vectors; i += step * AHEAD) {
    uint4 v[AHEAD] = {};
#pragma unroll
    for (int j = 0; j < AHEAD; ++j)
      if (i + j * step < vectors) v[j] = lane::load16(x + (i + j * step) * 4);
#pragma unroll
    for (int j = 0; j < AHEAD; ++j)
      if (i + j * step < vectors) lane::store16(x + (i + j * step) * 4, {~v[j].x, ~v[j].y, ~v[j].z, ~v[j].w});
  }
}
