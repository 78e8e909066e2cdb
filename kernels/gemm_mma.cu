// First tensor-core tile: 16 sequences by 64 weight rows a block, 16 of them a warp, operands straight from memory to the
// fragments of m16n8k32, activations as A and weights as B.
//
// Lane t of a group of four owns bytes 8t .. 8t + 7 of a block of 32 in both operands: one permutation of K, which an
// exact integer dot does not see, and one 8-byte load a fragment row.
#include "projection_tile.cuh"

constexpr int M = 16, WARPS = 4, TILES_OF_WARP = 2, N_OF_WARP = 8 * TILES_OF_WARP;

__device__ inline long long clamped(int row, int rows) { return row < rows ? row : rows - 1; }

template <int WORDS>
__device__ inline void add_block(float (&acc)[TILES_OF_WARP][4], const signed char* const (&x)[2],
                                 const float* const (&xs)[2], const signed char* const (&w)[TILES_OF_WARP],
                                 const half_t* const (&ws)[TILES_OF_WARP][2],
                                 int b, int K) {
  unsigned a[WORDS][4];
#pragma unroll
  for (int word = 0; word < WORDS; ++word)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint2 v = lane::load8(x[half] + word * K + b * lane::QUANTUM);
      a[word][half] = v.x, a[word][half + 2] = v.y;
    }
  const float scale[2] = {xs[0][b], xs[1][b]};
#pragma unroll
  for (int tile = 0; tile < TILES_OF_WARP; ++tile) {
    const uint2 v = lane::load8(w[tile] + b * lane::QUANTUM);
    const unsigned operand[2] = {v.x, v.y};
    int d[WORDS][4];
#pragma unroll
    for (int word = 0; word < WORDS; ++word) lane::mma_s8(d[word], a[word], operand, lane::MAGIC);
    const lane::WeightScale s[2] = {lane::weight_scale(ws[tile][0][b]), lane::weight_scale(ws[tile][1][b])};
    lane::add_products<WORDS, false>(acc[tile], d, s, scale);
  }
}

template <int WORDS>
__global__ void __launch_bounds__(32 * WARPS, 2)
gemm_mma(const signed char* __restrict__ codes /* [rows, WORDS, K] */, const float* __restrict__ scales,
         const signed char* __restrict__ w /* [N, K] */, const half_t* __restrict__ ws /* [N, KB] */,
         float* __restrict__ y /* [rows, N] */, int y_pitch, int rows, int N, int KB) {
  const int g = threadIdx.x % 32 / 4, quad = threadIdx.x % 4;
  const int K = KB * lane::QUANTUM, tiles = (N + N_OF_WARP - 1) / N_OF_WARP, m0 = blockIdx.y * M;
  const signed char* x[2];
  const float* xs[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const long long row = clamped(m0 + g + 8 * half, rows);
    x[half] = codes + row * WORDS * K + 8 * quad, xs[half] = scales + row * KB;
  }
  for (int tile = blockIdx.x * WARPS + threadIdx.x / 32; tile < tiles; tile += gridDim.x * WARPS) {
    const int n0 = tile * N_OF_WARP;
    const signed char* weights[TILES_OF_WARP];
    const half_t* row_scales[TILES_OF_WARP][2];
#pragma unroll
    for (int t = 0; t < TILES_OF_WARP; ++t) {
      weights[t] = w + clamped(n0 + 8 * t + g, N) * K + 8 * quad;
      for (int c = 0; c < 2; ++c) row_scales[t][c] = ws + clamped(n0 + 8 * t + 2 * quad + c, N) * KB;
    }
    float total[TILES_OF_WARP][4] = {};
    for (int slice = 0; slice < lane::SLICES; ++slice) {
      float acc[TILES_OF_WARP][4] = {};
      const int end = lane::slice_begin(slice + 1, KB);
#pragma unroll 2
      for (int b = lane::slice_begin(slice, KB); b < end; ++b) add_block<WORDS>(acc, x, xs, weights, row_scales, b, K);
      lane::close_slice(acc, total);
    }
#pragma unroll
    for (int t = 0; t < TILES_OF_WARP; ++t)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = m0 + g + i / 2 * 8, column = n0 + 8 * t + 2 * quad + i % 2;
        if (row < rows && column < N) *lane::output(y, 0, rows, row, y_pitch, column) = total[t][i];
      }
  }
}
