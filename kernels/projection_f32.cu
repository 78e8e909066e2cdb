// Small float32 projection (beta and decay of the GDN layer: N is two per value head), as planes of y = x W^T: a plane a
// chunk of 256 elements of K. Whoever reads y adds them ascending from zero, which is the order of a long row.
//
// A warp does a chunk for 4 weight rows and SEQS sequences at a time: lane l owns elements 8l .. 8l + 7, a chain of fma
// from zero, and the lanes are summed by the xor tree 16, 8, 4, 2, 1. Its weights stay in registers, loaded before the
// wait for the launch that makes x; no warp waits for another.
#include "device.cuh"

constexpr int OWNED = 8, CHUNK = 32 * OWNED, W_ROWS = 4, ROWS = 8;

__device__ inline void load_owned(float (&v)[OWNED], const float* p, bool inside) {
#pragma unroll
  for (int i = 0; i < OWNED; i += 4) {
    const uint4 four = inside ? lane::load16(p + i) : uint4{0, 0, 0, 0};
    v[i] = lane::from_bits(four.x), v[i + 1] = lane::from_bits(four.y);
    v[i + 2] = lane::from_bits(four.z), v[i + 3] = lane::from_bits(four.w);
  }
}

template <int SEQS>
__global__ void __launch_bounds__(128)
projection_f32(const float* __restrict__ x /* [rows, K] */, int x_pitch, const float* __restrict__ w /* [N, K] */,
               float* __restrict__ y /* [planes, rows, N] */, int y_pitch, int rows, int N, int K) {
  lane::admit_next_launch();
  constexpr int OUTPUTS = W_ROWS * SEQS;
  static_assert(OUTPUTS <= 32 && ROWS % SEQS == 0, "projection_f32: an output of a pass has lanes of its own, and passes tile a block");
  const int l = threadIdx.x % 32, k = blockIdx.x * CHUNK + l * OWNED;
  const int n0 = (blockIdx.y * (blockDim.x / 32) + threadIdx.x / 32) * W_ROWS, first = blockIdx.z * ROWS;
  float weight[W_ROWS][OWNED];
#pragma unroll
  for (int r = 0; r < W_ROWS; ++r)
    load_owned(weight[r], w + static_cast<long long>(n0 + r < N ? n0 + r : N - 1) * K + k, k < K);
  lane::await_launches_before();
  for (int m0 = first; m0 < first + ROWS && m0 < rows; m0 += SEQS) {
    float sum[OUTPUTS];
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
    const float mine = lane::warp_sum_owned<false>(sum);
    const int output = l / (32 / OUTPUTS), row = m0 + output / W_ROWS, n = n0 + output % W_ROWS;
    if (l % (32 / OUTPUTS) == 0 && row < rows && n < N)
      y[(static_cast<long long>(blockIdx.x) * rows + row) * y_pitch + n] = mine;
  }
}
