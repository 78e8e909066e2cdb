// Warpgroup tile, for prefill: 128 pre-tiled weight rows in the rows of two warpgroups, 128 activation rows in their columns.
//
// A warp loads its 16 weight rows of a block of 32 as one A operand; the activations stay in shared memory, where the tensor
// core reads them by itself. So of the issue slots that a block costs almost all are the float operations of the contract:
// per output one conversion and two roundings. Products of one warpgroup run beside the float operations of the other.
// The sums of the slices before the one in progress are touched 8 times a tile and wait in shared memory.
//
// The ring goes on from one tile of the block to the next. A stage holds a chunk of 4 blocks: codes [word][row] of 128 bytes,
// swizzled; scales [block][row]; 8 panels, which the copy engine brings.
#include "hopper.cuh"
#include "projection_tile.cuh"

constexpr int GROUPS = 2, WARPS = 4 * GROUPS, THREADS = 32 * WARPS, COLUMNS = 128;
constexpr int PARTS = 2, PART = COLUMNS / PARTS;  // products of a warp in flight, and their columns
constexpr int SUMS = PART / 2;                    // of a thread and part

// Where the scale of activation row r lies among those of its block: a lane's four of two neighbouring fragments side by side.
__device__ inline int place_of_scale(int r) { return r / 16 * 16 + r % 8 / 2 * 4 + r % 16 / 8 * 2 + r % 2; }

// chunks of the tiles blockIdx.x, blockIdx.x + gridDim.x, .. in the order in which they are multiplied
struct TileWalk {
  lane::Slices share;
  int tile, tiles, KB;
  lane::Walk<4> at;
  __device__ TileWalk(lane::Slices s, int all, int blocks) : share(s), tile(blockIdx.x), tiles(all), KB(blocks), at(s, blocks) {}
  __device__ bool more() const { return tile < tiles; }
  __device__ bool next() {  // whether a tile has ended
    at.next();
    if (!at.done()) return false;
    tile += gridDim.x, at = lane::Walk<4>(share, KB);
    return true;
  }
};

// What a thread copies of every chunk of a tile, and the first lane of a warp by the copy engine: its pointers change with
// the tile alone, since the arithmetic of a chunk would be issued by every warp of the block.
template <int WORDS, class WEIGHTS>
struct Source {
  using X = lane::ActivationStage<WORDS, COLUMNS, 4>;
  static constexpr int CODES = COLUMNS * 8 / THREADS, SCALES = (COLUMNS * 4 + THREADS - 1) / THREADS;  // copies of a thread, a word
  static constexpr int CODE_STEP = THREADS / 8, SCALE_STEP = THREADS / 4;              // rows apart: one place of the swizzle

  const signed char* codes[CODES];
  const float* scales[SCALES];
  const unsigned char* panel;

  __device__ void enter(const signed char* all_codes, const float* all_scales, const unsigned char* tiles, int first, int index,
                        int rows, int last_panel, int KB) {
#pragma unroll
    for (int i = 0; i < CODES; ++i) codes[i] = all_codes + lane::widened(row(first, i * CODE_STEP + threadIdx.x / 8, rows), WORDS * KB * 32) + threadIdx.x % 8 * 16;
#pragma unroll
    for (int i = 0; i < SCALES; ++i) scales[i] = all_scales + lane::widened(row(first, i * SCALE_STEP + threadIdx.x / 4, rows), KB) + threadIdx.x % 4;
    panel = tiles + (index < last_panel ? index : last_panel) * (static_cast<long long>(lane::SLICES) * lane::chunks_of_slice(KB) * WEIGHTS::BYTES);
  }

  __device__ void copy(unsigned char* slot, barrier_t* full, const lane::Walk<4>& at, int KB) const {
    const int warp = threadIdx.x / 32, count = at.count();
    if (threadIdx.x % 32 == 0) {
      lane::barrier_expect(full, WEIGHTS::BYTES);
      const unsigned char* from = panel + lane::widened(at.slice * lane::chunks_of_slice(KB) + at.chunk(), WEIGHTS::BYTES);
      lane::bulk_copy<false>(slot + X::BYTES + warp * WEIGHTS::BYTES, from, WEIGHTS::BYTES, full);
    }
    if (threadIdx.x % 8 < 2 * count) {
      const int line = threadIdx.x / 8;
      unsigned char* place = slot + line * 128 + (threadIdx.x % 8 ^ line % 8) * 16;
#pragma unroll
      for (int word = 0; word < WORDS; ++word)
#pragma unroll
        for (int i = 0; i < CODES; ++i)
          lane::cp_async16(place + (word * COLUMNS + i * CODE_STEP) * 128, codes[i] + word * KB * 32 + at.block * 32);
    }
    if (threadIdx.x % 4 < count && threadIdx.x < 4 * COLUMNS) {
      float* place = reinterpret_cast<float*>(slot + X::CODES) + threadIdx.x % 4 * COLUMNS + place_of_scale(threadIdx.x / 4);
#pragma unroll
      for (int i = 0; i < SCALES; ++i) lane::cp_async4(place + i * SCALE_STEP, scales[i] + at.block);
    }
  }

 private:
  // a row past the last reads the last again
  __device__ static int row(int first, int r, int rows) { return first + r < rows ? first + r : rows - 1; }
};

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
__global__ void __launch_bounds__(THREADS, 1)
gemm_wg(const signed char* __restrict__ codes /* [rows, WORDS, K] */, const float* __restrict__ scales /* [rows, KB] */,
        const unsigned char* __restrict__ tiles /* [panels, 8, chunks, panel bytes] */,
        float* __restrict__ y /* [planes, rows, N] */, int y_pitch, int rows, int N, int KB) {
  static_assert(STAGES >= 2, "gemm_wg: a chunk is copied while another is multiplied");
  using X = lane::ActivationStage<WORDS, COLUMNS, 4>;
  using W = lane::WeightPanels<BITS>;
  constexpr int STAGE = X::BYTES + WARPS * W::BYTES;
  static_assert(STAGE % 1024 == 0, "gemm_wg: the swizzle of a stage's codes repeats every 1024 bytes");
  static_assert(STAGES * (STAGE + 8) + 4 * PARTS * SUMS * THREADS <= lane::SHARED_BUDGET, "gemm_wg: the stages do not fit a block");
  DYNAMIC_SHARED_ALIGNED(1024, unsigned char, ring);
  float* totals = reinterpret_cast<float*>(ring + STAGES * STAGE) + threadIdx.x;
  barrier_t* full = reinterpret_cast<barrier_t*>(ring + STAGES * STAGE + 4 * PARTS * SUMS * THREADS);
  const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  const int columns = (rows + COLUMNS - 1) / COLUMNS, last_panel = (N + 15) / 16 - 1;
  const bool planes = gridDim.y > 1;
  const lane::Slices share(blockIdx.y, gridDim.y);

  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; ++i) lane::barrier_init(full + i, WARPS);
    lane::barrier_publish();
  }
#pragma unroll
  for (int i = 0; i < PARTS * SUMS; ++i) totals[i * THREADS] = 0.0f;
  __syncthreads();

  // tiles of one column of weights follow each other, so that its weights are read from memory once
  TileWalk now(share, columns * ((N + 16 * WARPS - 1) / (16 * WARPS)), KB), ahead = now;
  Source<WORDS, W> source;
  const auto enter = [&] {
    source.enter(codes, scales, tiles, ahead.tile % columns * COLUMNS, ahead.tile / columns * WARPS + warp, rows, last_panel, KB);
  };
  const auto copy = [&](int stage) {
    source.copy(ring + stage * STAGE, full + stage, ahead.at, KB);
    if (ahead.next() && ahead.more()) enter();
  };
  if (ahead.more()) enter();

  float acc[PARTS][SUMS] = {};
  const auto store = [&](int tile, int plane) {
    const int n = (tile / columns * WARPS + warp) * 16 + g, first = tile % columns * COLUMNS + 2 * t;
#pragma unroll
    for (int i = 0; i < PARTS * SUMS; ++i) {
      const int row = first + i / 4 * 8 + i % 2, column = n + i / 2 % 2 * 8;
      if (row < rows && column < N) *lane::output(y, plane, rows, row, y_pitch, column) = totals[i * THREADS];
      totals[i * THREADS] = 0.0f;
    }
  };

  for (int stage = 0; stage < STAGES - 1; ++stage) {
    if (ahead.more()) copy(stage);
    lane::cp_async_commit();
  }
  unsigned parity = 0;
  for (int used = 0; now.more();) {
    // this thread's copies of the chunk have come and the tensor core may see them; then everybody's have, and nobody reads
    // the stage before any more
    lane::cp_async_wait<STAGES - 2>();
    lane::fence_proxy();
    lane::barrier_wait(full + used, parity);
    __syncthreads();
    if (ahead.more()) copy(used == 0 ? STAGES - 1 : used - 1);
    lane::cp_async_commit();
    const int count = now.at.count();
    if (count == 4) multiply<WORDS, X, W, 4>(acc, ring + used * STAGE, 0);
    else
      for (int b = 0; b < count; ++b) multiply<WORDS, X, W, 1>(acc, ring + used * STAGE, b);
    if (now.at.closes()) {
#pragma unroll
      for (int i = 0; i < PARTS * SUMS; ++i) totals[i * THREADS] = totals[i * THREADS] + acc[i / SUMS][i % SUMS], acc[i / SUMS][i % SUMS] = 0.0f;
      if (planes) store(now.tile, now.at.slice);
    }
    const int tile = now.tile;
    if (now.next() && !planes) store(tile, 0);
    if (++used == STAGES) used = 0, parity ^= 1;
  }
}
