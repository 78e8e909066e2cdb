// Small float32 projection (beta and decay of the GDN layer: N is two per value head): y = x W^T.
//
// A warp does a chunk of 256 elements of K for 4 weight rows and SEQS sequences: lane l owns elements 8l .. 8l + 7, a
// chain of fma from zero, and the lanes are summed by the xor tree 16, 8, 4, 2, 1. Chunks are added ascending from zero.
#include "device.cuh"

constexpr int OWNED = 8, CHUNK = 32 * OWNED, W_ROWS = 4, CHUNKS = 128;

__device__ inline void load_owned(float (&v)[OWNED], const float* p, bool inside) {
#pragma unroll
  for (int i = 0; i < OWNED; i += 4) {
    const uint4 four = inside ? lane::load16(p + i) : uint4{0, 0, 0, 0};
    v[i] = lane::from_bits(four.x), v[i + 1] = lane::from_bits(four.y);
    v[i + 2] = lane::from_bits(four.z), v[i + 3] = lane::from_bits(four.w);
  }
}

template <int SEQS>
__global__ void __launch_bounds__(256)
projection_f32(const float* __restrict__ x /* [rows, K] */, int x_pitch, const float* __restrict__ w /* [N, K] */,
               float* __restrict__ y /* [rows, N] */, int y_pitch, int rows, int N, int K) {
  lane::overlap_launches();
  static_assert(SEQS >= 1 && W_ROWS * SEQS <= 32, "projection_f32: a lane of the first warp adds the chunks of one output");
  constexpr int OUTPUTS = W_ROWS * SEQS;
  SHARED(float, chunk_sums, [CHUNKS][OUTPUTS]);
  const int n0 = blockIdx.x * W_ROWS, m0 = blockIdx.y * SEQS, l = threadIdx.x % 32, chunks = (K + CHUNK - 1) / CHUNK;
  for (int chunk = threadIdx.x / 32; chunk < chunks; chunk += blockDim.x / 32) {
    const int k = chunk * CHUNK + l * OWNED;
    float weight[W_ROWS][OWNED], sum[OUTPUTS];
#pragma unroll
    for (int r = 0; r < W_ROWS; ++r)
      load_owned(weight[r], w + static_cast<long long>(n0 + r < N ? n0 + r : N - 1) * K + k, k < K);
#pragma unroll
    for (int q = 0; q < SEQS; ++q) {
      float v[OWNED];
      load_owned(v, x + static_cast<long long>(m0 + q < rows ? m0 + q : rows - 1) * x_pitch + k, k < K);
#pragma unroll
      for (int r = 0; r < W_ROWS; ++r) {
        float acc = 0.0f;
#pragma unroll
        for (int i = 0; i < OWNED; ++i) acc = fmaf(weight[r][i], v[i], acc);
        sum[q * W_ROWS + r] = acc;
      }
    }
    lane::warp_sum(sum);
    float mine = 0.0f;
#pragma unroll
    for (int o = 0; o < OUTPUTS; ++o) mine = l == o ? sum[o] : mine;
    if (l < OUTPUTS) chunk_sums[chunk][l] = mine;
  }
  __syncthreads();
  if (threadIdx.x >= OUTPUTS) return;
  const int row = m0 + threadIdx.x / W_ROWS, n = n0 + threadIdx.x % W_ROWS;
  float total = 0.0f;
  for (int chunk = 0; chunk < chunks; ++chunk) total = total + chunk_sums[chunk][threadIdx.x];
  if (row < rows && n < N) y[static_cast<long long>(row) * y_pitch + n] = total;
}
