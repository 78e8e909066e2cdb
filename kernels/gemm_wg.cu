// Warpgroup tile, for prefill: 128 pre-tiled weight rows in the rows of two warpgroups, 128 activation rows in their columns.
//
// A warp loads its 16 weight rows of a block of 32 as one A operand; the activations stay in shared memory, where the tensor
// core reads them by itself. So of the issue slots that a block costs almost all are the float operations of the contract:
// per output one conversion and two roundings, 12 a 16 x 8 x 32 product. Products of one part of the columns run beside the
// sums of the other.
//
// A group of its own copies (gemm_wg.cuh), so that no warp that multiplies waits for a barrier of the block, and the ring goes
// on from one tile to the next: 512 rows x 16384 x 5120 take 296 us on an H200 (bench-projections-20261130T225647Z). The sums
// of the slices before the one in progress are touched 8 times a tile and wait in shared memory.
#include "gemm_wg.cuh"

using namespace warpgroup;

constexpr int PARTS = 2, PART = COLUMNS / PARTS;  // products of a warp in flight, and their columns
constexpr int SUMS = PART / 2;                    // of a thread and part

// one product of a part of the columns: the rows at `codes`, word WORD of their codes
template <int WORD>
__device__ inline void start_product(int (&d)[SUMS], const unsigned (&a)[4], const unsigned char* codes) {
  lane::wgmma_fence();
  lane::wgmma_s8<(WORD > 0)>(d, a, lane::swizzled_operand(codes));
  lane::wgmma_commit();
}

// COUNT blocks of a stage from `first` on. While one product is made the sums of another are: a part of the columns each.
template <int WORDS, class X, class W, int COUNT>
__device__ inline void multiply(float (&acc)[PARTS][SUMS], const unsigned char* slot, int first) {
  const int g = threadIdx.x % 32 / 4;
  const unsigned char* panel = slot + X::BYTES + threadIdx.x / 32 * W::BYTES;
  const float* xs = reinterpret_cast<const float*>(slot + X::CODES) + first * COLUMNS + threadIdx.x % 4 * 4;
  const auto codes = [&](int word, int part, int b) { return X::word(slot, word) + part * (PART * 128) + 32 * (first + b); };
  unsigned a[2][4];
  int d[PARTS][SUMS];
  W::row_fragment(a[0], panel, first);
#pragma unroll
  for (int part = 0; part < PARTS; ++part) start_product<0>(d[part], a[0], codes(0, part, 0));
#pragma unroll
  for (int b = 0; b < COUNT; ++b) {
    const float ws[2] = {W::scale(panel, g, first + b).ws, W::scale(panel, g + 8, first + b).ws};
    if (b + 1 < COUNT) W::row_fragment(a[(b + 1) % 2], panel, first + b + 1);
#pragma unroll
    for (int part = 0; part < PARTS * (WORDS - 1); ++part) {
      lane::wgmma_wait<PARTS - 1>(d[part]);
#pragma unroll
      for (int i = 0; i < SUMS; ++i) d[part][i] = d[part][i] * 128;
      start_product<1>(d[part], a[b % 2], codes(1, part, b));
    }
#pragma unroll
    for (int part = 0; part < PARTS; ++part) {
      if (b + 1 == COUNT && part + 1 == PARTS) lane::wgmma_wait<0>(d[part]);
      else lane::wgmma_wait<PARTS - 1>(d[part]);
#pragma unroll
      for (int j = 0; j < PART / 16; ++j) {
        const uint4 four = lane::load16(xs + b * COLUMNS + part * PART + 16 * j);
        const float x[4] = {lane::from_bits(four.x), lane::from_bits(four.y), lane::from_bits(four.z), lane::from_bits(four.w)};
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const float product = static_cast<float>(d[part][8 * j + i]) * ws[i / 2 % 2];
          acc[part][8 * j + i] = fmaf(product, x[i / 4 * 2 + i % 2], acc[part][8 * j + i]);
        }
      }
      if (b + 1 < COUNT) start_product<0>(d[part], a[(b + 1) % 2], codes(0, part, b + 1));
    }
  }
}

template <int WORDS, int BITS, int STAGES>
__global__ void __launch_bounds__(THREADS + 128, 1)
gemm_wg(const signed char* __restrict__ codes /* [rows, WORDS, K] */, const float* __restrict__ scales /* [rows, KB] */,
        const unsigned char* __restrict__ tiles /* [panels, 8, chunks, panel bytes] */,
        float* __restrict__ y /* [planes, rows, N] */, int y_pitch, int rows, int N, int KB) {
  static_assert(STAGES >= 2, "gemm_wg: a chunk is copied while another is multiplied");
  using X = lane::ActivationStage<WORDS, COLUMNS, 4>;
  using W = lane::WeightPanels<BITS>;
  constexpr int STAGE = Stage<X, W>::BYTES, TOTALS = 4 * PARTS * SUMS * THREADS;
  static_assert(STAGES * (STAGE + 16) + TOTALS <= lane::SHARED_BUDGET, "gemm_wg: the stages do not fit a block");
  DYNAMIC_SHARED_ALIGNED(1024, unsigned char, ring);
  barrier_t* full = reinterpret_cast<barrier_t*>(ring + STAGES * STAGE + TOTALS);
  barrier_t* empty = full + STAGES;
  const int warp = threadIdx.x / 32, columns = (rows + COLUMNS - 1) / COLUMNS;
  const bool planes = gridDim.y > 1;
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; ++i) lane::barrier_init(full + i, 128 + 4), lane::barrier_init(empty + i, WARPS);
    lane::barrier_publish();
  }
  __syncthreads();

  // tiles of one column of weights follow each other, so that its weights are read from memory once
  TileWalk now(lane::Slices(blockIdx.y, gridDim.y), columns * ((N + 16 * WARPS - 1) / (16 * WARPS)), KB);
  if (warp >= WARPS) {
    lane::keep_registers<72>();
    return feed<WORDS, W, STAGES>(now, ring, full, empty, codes, scales, tiles, columns, rows, (N + 15) / 16 - 1);
  }
  lane::take_registers<216>();
  // the sums of closed slices, four of a thread side by side
  float* totals = reinterpret_cast<float*>(ring + STAGES * STAGE) + 4 * threadIdx.x;
  float acc[PARTS][SUMS] = {};
#pragma unroll
  for (int i = 0; i < PARTS * SUMS; i += 4) lane::store16(totals + i * THREADS, uint4{0, 0, 0, 0});
  const auto close = [&] {
#pragma unroll
    for (int i = 0; i < PARTS * SUMS; i += 4) {
      float* a = acc[i / SUMS] + i % SUMS;
      const uint4 t = lane::load16(totals + i * THREADS);
      const float sums[4] = {lane::from_bits(t.x) + a[0], lane::from_bits(t.y) + a[1], lane::from_bits(t.z) + a[2],
                             lane::from_bits(t.w) + a[3]};
      lane::store16(totals + i * THREADS, uint4{lane::bits(sums[0]), lane::bits(sums[1]), lane::bits(sums[2]), lane::bits(sums[3])});
      a[0] = a[1] = a[2] = a[3] = 0.0f;
    }
  };
  const auto store = [&](int tile, int plane) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const int n = (tile / columns * WARPS + warp) * 16 + g, first = tile % columns * COLUMNS + 2 * t;
#pragma unroll
    for (int i = 0; i < PARTS * SUMS; i += 4) {
      const uint4 four = lane::load16(totals + i * THREADS);
      const unsigned sums[4] = {four.x, four.y, four.z, four.w};
      lane::store16(totals + i * THREADS, uint4{0, 0, 0, 0});
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int row = first + i * 2 + k % 2, column = n + k / 2 * 8;
        if (row < rows && column < N) *lane::output(y, plane, rows, row, y_pitch, column) = lane::from_bits(sums[k]);
      }
    }
  };
  unsigned parity = 0;
  for (int used = 0; now.more();) {
    lane::barrier_wait(full + used, parity);
    const int count = now.at.count();
    if (count == 4) multiply<WORDS, X, W, 4>(acc, ring + used * STAGE, 0);
    else
      for (int b = 0; b < count; ++b) multiply<WORDS, X, W, 1>(acc, ring + used * STAGE, b);
    __syncwarp();
    if (threadIdx.x % 32 == 0) lane::barrier_arrive(empty + used);
    if (now.at.closes()) {
      close();
      if (planes) store(now.tile, now.at.slice);
    }
    const int tile = now.tile;
    if (now.next() && !planes) store(tile, 0);
    if (++used == STAGES) used = 0, parity ^= 1;
  }
}
