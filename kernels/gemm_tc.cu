// Tensor-core tile: weights in the 16 rows of the fragment, sequences in its columns, COLS of them a block; more come by
// grid.z. A warp owns 16 weight rows, so that a block of w warps is a tile of 16 w rows; grid.y splits the slices of K.
// Weights are rows of Q8_0 or Q4 codes, or the panels of `pretile`.
#include "projection_tile.cuh"

template <int WORDS, class WEIGHTS, int COLS, int STAGES>
__device__ inline void gemm_tc_body(const WEIGHTS& weights, const signed char* codes, const float* scales, float* y,
                                    int pitch, int rows) {
  static_assert(COLS % 8 == 0 && COLS >= 8 && COLS <= 64, "gemm_tc: a block holds 8 to 64 sequences, 8 a fragment");
  using X = lane::ActivationStage<WORDS, COLS, WEIGHTS::BLOCKS>;
  constexpr int MAX_WARPS = 8, TILES = COLS / 8, PAIR = TILES > 1 ? 2 : 1;
  // few columns leave little to overlap inside a block of 32, so that the blocks of a chunk are unrolled
  constexpr int UNROLL = TILES > 1 ? 1 : WEIGHTS::BLOCKS < 4 ? WEIGHTS::BLOCKS : 4;
  static_assert(STAGES * (X::BYTES + MAX_WARPS * WEIGHTS::BYTES) <= lane::SHARED_BUDGET,
                "gemm_tc: the stages do not fit into the shared memory of a block");
  DYNAMIC_SHARED(unsigned char, ring);
  const int warp = threadIdx.x / 32, warps = blockDim.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  const int stage_bytes = X::BYTES + warps * WEIGHTS::BYTES, m0 = blockIdx.z * COLS, KB = weights.KB;
  const lane::Slices share(blockIdx.y, gridDim.y);
  const bool planes = gridDim.y > 1;

  for (int tile = blockIdx.x; tile * warps * 16 < weights.N; tile += gridDim.x) {
    const int panel = tile * warps + warp;
    float acc[TILES][4] = {}, total[TILES][4] = {};
    const auto store = [&](int plane) {
#pragma unroll
      for (int i = 0; i < TILES * 4; ++i) {
        const int row = m0 + i / 4 * 8 + 2 * t + i % 2, n = panel * 16 + g + i % 4 / 2 * 8;
        if (row < rows && n < weights.N) *lane::output(y, plane, rows, row, pitch, n) = total[i / 4][i % 4];
        total[i / 4][i % 4] = 0.0f;
      }
    };
    const auto copy = [&](const lane::Walk<WEIGHTS::BLOCKS>& at, int stage) {
      unsigned char* slot = ring + stage * stage_bytes;
      // by the first two warps, or by the only one: what else a block has copies its panels meanwhile
      if (warps == 1) X::template copy<32>(slot, codes, scales, m0, rows, KB, at, threadIdx.x);
      else if (warp < 2) X::template copy<64>(slot, codes, scales, m0, rows, KB, at, threadIdx.x);
      weights.copy(slot + X::BYTES + warp * WEIGHTS::BYTES, panel, at);
    };
    const auto use = [&](const lane::Walk<WEIGHTS::BLOCKS>& at, int stage) {
      const unsigned char *x = ring + stage * stage_bytes, *w = x + X::BYTES + warp * WEIGHTS::BYTES;
#pragma unroll UNROLL
      for (int b = 0; b < at.count(); ++b) {
        unsigned a[4];
        WEIGHTS::row_fragment(a, w, b);
        const lane::WeightScale s[2] = {WEIGHTS::scale(w, g, b), WEIGHTS::scale(w, g + 8, b)};
#pragma unroll
        for (int c = 0; c < TILES; c += PAIR) {
          unsigned f[WORDS][2 * PAIR];
#pragma unroll
          for (int word = 0; word < WORDS; ++word) X::Codes::column_fragment(f[word], X::word(x, word), 8 * c, b);
#pragma unroll
          for (int p = 0; p < PAIR; ++p) {
            const int column = 8 * (c + p) + 2 * t;
            int d[WORDS][4];
#pragma unroll
            for (int word = 0; word < WORDS; ++word) {
              const unsigned operand[2] = {f[word][2 * p], f[word][2 * p + 1]};
              lane::mma_s8(d[word], a, operand, lane::MAGIC);
            }
            const float xs[2] = {X::scale(x, column, b), X::scale(x, column + 1, b)};
            lane::add_products<WORDS, true>(acc[c + p], d, s, xs);
          }
        }
      }
      if (!at.closes()) return;
      lane::close_slice(acc, total);
      if (planes) store(at.slice);
    };
    lane::run_ring<STAGES, WEIGHTS::BLOCKS>(share, KB, copy, use);
    if (!planes) store(0);
  }
}

// from 32 sequences on the sums need more registers than two blocks an SM could have
template <int COLS>
constexpr int BLOCKS_OF_SM = COLS > 16 ? 1 : 2;

template <int WORDS, int COLS, int CHUNK, int STAGES>
__global__ void __launch_bounds__(256, BLOCKS_OF_SM<COLS>)
gemm_tc(const signed char* __restrict__ codes /* [rows, WORDS, K] */, const float* __restrict__ scales,
        const signed char* __restrict__ w /* [N, K] */, const half_t* __restrict__ ws /* [N, KB] */,
        float* __restrict__ y /* [planes, rows, N] */, int y_pitch, int rows, int N, int KB) {
  using W = lane::WeightRows<8, CHUNK>;
  const W weights{reinterpret_cast<const unsigned char*>(w), ws, N, KB};
  gemm_tc_body<WORDS, W, COLS, STAGES>(weights, codes, scales, y, y_pitch, rows);
}

template <int COLS, int CHUNK, int STAGES>
__global__ void __launch_bounds__(256, BLOCKS_OF_SM<COLS>)
gemm_tc_q4(const signed char* __restrict__ codes /* [rows, 1, K] */, const float* __restrict__ scales /* [rows, KB] */,
           const unsigned char* __restrict__ w /* [N, K / 2] */, const half_t* __restrict__ ws /* [N, KB] */,
           float* __restrict__ y /* [planes, rows, N] */, int y_pitch, int rows, int N, int KB) {
  static_assert(STAGES > 1, "gemm_tc: Q4 rides only a ring of two or more stages");
  using W = lane::WeightRows<4, CHUNK>;
  gemm_tc_body<1, W, COLS, STAGES>(W{w, ws, N, KB}, codes, scales, y, y_pitch, rows);
}

template <int WORDS, int BITS, int COLS, int STAGES>
__global__ void __launch_bounds__(256, BLOCKS_OF_SM<COLS>)
gemm_tc_tiled(const signed char* __restrict__ codes /* [rows, WORDS, K] */, const float* __restrict__ scales,
              const unsigned char* __restrict__ tiles /* [panels, 8, chunks, panel bytes] */,
              float* __restrict__ y /* [planes, rows, N] */, int y_pitch, int rows, int N, int KB) {
  using W = lane::WeightPanels<BITS>;
  gemm_tc_body<WORDS, W, COLS, STAGES>(W{tiles, N, KB}, codes, scales, y, y_pitch, rows);
}
