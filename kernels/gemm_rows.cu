// Rows-in-M tile, for prefill: 128 rows of activations in the rows of the fragments, weights in their columns.
//
// 8 warps, 2 along the rows and 4 along the weights; a warp owns 64 rows by PANELS * 16 weights. Per block of 32 and 8192
// integer operations a warp then spends one mma and 8 float operations, and its operand loads are shared by 4 or 8 mma.
// More warps would have smaller tiles, whose operand loads fewer mma share.
// The sums of the slices before the one in progress are touched 8 times a tile: those of a wide tile wait in shared memory.
#include "projection_tile.cuh"

constexpr int M = 128, ROW_WARPS = 2, WEIGHT_WARPS = 4, WARPS = ROW_WARPS * WEIGHT_WARPS, M_TILES = M / ROW_WARPS / 16;

// UNROLL: blocks of 32 that overlap, as registers allow
template <int WORDS, class WEIGHTS, int PANELS, int STAGES, int UNROLL = 1>
__device__ inline void gemm_rows_body(const WEIGHTS& weights, const signed char* codes, const float* scales, float* y,
                                      int pitch, int rows) {
  using X = lane::ActivationStage<WORDS, M, WEIGHTS::BLOCKS, M_TILES>;
  constexpr int BLOCK_PANELS = WEIGHT_WARPS * PANELS, STAGE = X::BYTES + BLOCK_PANELS * WEIGHTS::BYTES;
  constexpr int N_TILES = 2 * PANELS;
  constexpr int SUMS = M_TILES * N_TILES * 4;  // of a thread
  constexpr bool SHARED_TOTALS = PANELS > 1;
  static_assert(STAGES * STAGE + (SHARED_TOTALS ? 128 * SUMS * WARPS : 0) <= lane::SHARED_BUDGET,
                "gemm_rows: the stages do not fit into the shared memory of a block");
  DYNAMIC_SHARED(unsigned char, ring);
  const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  const int row_of_warp = warp % ROW_WARPS * (16 * M_TILES), panel_of_warp = warp / ROW_WARPS * PANELS, KB = weights.KB;
  const int m_tiles = (rows + M - 1) / M, n_tiles = (weights.N + 16 * BLOCK_PANELS - 1) / (16 * BLOCK_PANELS);
  const lane::Slices share(blockIdx.y, gridDim.y);
  const bool planes = gridDim.y > 1;

  // row tiles of one column of weights follow each other, so that its weights are read from memory once
  for (int tile = blockIdx.x; tile < m_tiles * n_tiles; tile += gridDim.x) {
    const int m0 = tile % m_tiles * M, panel0 = tile / m_tiles * BLOCK_PANELS;
    float acc[M_TILES * N_TILES][4] = {}, own[SHARED_TOTALS ? 1 : SUMS] = {};
    float* totals = reinterpret_cast<float*>(ring + STAGES * STAGE) + threadIdx.x;
    const auto total = [&](int i) -> float& { return SHARED_TOTALS ? totals[i * 32 * WARPS] : own[SHARED_TOTALS ? 0 : i]; };
#pragma unroll
    for (int i = 0; i < SUMS; ++i) total(i) = 0.0f;
    const auto store = [&](int plane) {
#pragma unroll
      for (int i = 0; i < SUMS; ++i) {
        const int f = i / 4, row = m0 + row_of_warp + f / N_TILES * 16 + g + i % 4 / 2 * 8;
        const int n = (panel0 + panel_of_warp) * 16 + f % N_TILES * 8 + 2 * t + i % 2;
        if (row < rows && n < weights.N) *lane::output(y, plane, rows, row, pitch, n) = total(i);
        total(i) = 0.0f;
      }
    };
    const auto copy = [&](const lane::Walk<WEIGHTS::BLOCKS>& at, int stage) {
      unsigned char* slot = ring + stage * STAGE;
      X::template copy<32 * WARPS>(slot, codes, scales, m0, rows, KB, at, threadIdx.x);
      for (int p = warp; p < BLOCK_PANELS; p += WARPS) weights.copy(slot + X::BYTES + p * WEIGHTS::BYTES, panel0 + p, at);
    };
    const auto use = [&](const lane::Walk<WEIGHTS::BLOCKS>& at, int stage) {
      const unsigned char *x = ring + stage * STAGE, *w = x + X::BYTES + panel_of_warp * WEIGHTS::BYTES;
#pragma unroll UNROLL
      for (int b = 0; b < at.count(); ++b) {
        unsigned fragment[PANELS][4];
        lane::WeightScale s[N_TILES][2];
#pragma unroll
        for (int p = 0; p < PANELS; ++p) {
          const unsigned char* panel = w + p * WEIGHTS::BYTES;
          WEIGHTS::column_fragments(fragment[p], panel, b);
#pragma unroll
          for (int i = 0; i < 4; ++i) s[2 * p + i / 2][i % 2] = WEIGHTS::scale(panel, i / 2 * 8 + 2 * t + i % 2, b);
        }
        float xs[M_TILES][2];
        X::scales(xs, x, row_of_warp, b);
#pragma unroll
        for (int m = 0; m < M_TILES; ++m) {
          unsigned a[WORDS][4];
#pragma unroll
          for (int word = 0; word < WORDS; ++word)
            X::Codes::row_fragment(a[word], X::word(x, word), row_of_warp + 16 * m, b);
#pragma unroll
          for (int n = 0; n < N_TILES; ++n) {
            const unsigned operand[2] = {fragment[n / 2][n % 2 * 2], fragment[n / 2][n % 2 * 2 + 1]};
            int d[WORDS][4];
#pragma unroll
            for (int word = 0; word < WORDS; ++word) lane::mma_s8(d[word], a[word], operand, lane::MAGIC);
            lane::add_products<WORDS, false>(acc[m * N_TILES + n], d, s[n], xs[m]);
          }
        }
      }
      if (!at.closes()) return;
#pragma unroll
      for (int i = 0; i < SUMS; ++i) total(i) = total(i) + acc[i / 4][i % 4], acc[i / 4][i % 4] = 0.0f;
      if (planes) store(at.slice);
    };
    lane::run_ring<STAGES, WEIGHTS::BLOCKS>(share, KB, copy, use);
    if (!planes) store(0);
  }
}

template <int WORDS, int PANELS, int CHUNK, int STAGES>
__global__ void __launch_bounds__(32 * WARPS, 1)
gemm_rows(const signed char* __restrict__ codes /* [rows, WORDS, K] */, const float* __restrict__ scales,
          const signed char* __restrict__ w /* [N, K] */, const half_t* __restrict__ ws /* [N, KB] */,
          float* __restrict__ y /* [planes, rows, N] */, int y_pitch, int rows, int N, int KB) {
  using W = lane::WeightRows<8, CHUNK>;
  const W weights{reinterpret_cast<const unsigned char*>(w), ws, N, KB};
  gemm_rows_body<WORDS, W, PANELS, STAGES>(weights, codes, scales, y, y_pitch, rows);
}

template <int PANELS, int CHUNK, int STAGES>
__global__ void __launch_bounds__(32 * WARPS, 1)
gemm_rows_q4(const signed char* __restrict__ codes /* [rows, 1, K] */, const float* __restrict__ scales /* [rows, KB] */,
             const unsigned char* __restrict__ w /* [N, K / 2] */, const half_t* __restrict__ ws /* [N, KB] */,
             float* __restrict__ y /* [planes, rows, N] */, int y_pitch, int rows, int N, int KB) {
  static_assert(STAGES > 1, "gemm_rows: Q4 rides only a ring of two or more stages");
  using W = lane::WeightRows<4, CHUNK>;
  gemm_rows_body<1, W, PANELS, STAGES>(W{w, ws, N, KB}, codes, scales, y, y_pitch, rows);
}

template <int WORDS, int BITS, int PANELS, int STAGES>
__global__ void __launch_bounds__(32 * WARPS, 1)
gemm_rows_tiled(const signed char* __restrict__ codes /* [rows, WORDS, K] */, const float* __restrict__ scales,
                const unsigned char* __restrict__ tiles /* [panels, 8, chunks, panel bytes] */,
                float* __restrict__ y /* [planes, rows, N] */, int y_pitch, int rows, int N, int KB) {
  using W = lane::WeightPanels<BITS>;
  constexpr int UNROLL = WORDS == 1 && (BITS == 8 || PANELS == 1) ? 2 : 1;
  gemm_rows_body<WORDS, W, PANELS, STAGES, UNROLL>(W{tiles, N, KB}, codes, scales, y, y_pitch, rows);
}
