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

// What a thread of the group that copies brings of every chunk of a tile. Its pointers change with the tile alone.
template <int WORDS, class WEIGHTS>
struct Source {
  using X = lane::ActivationStage<WORDS, COLUMNS, 4>;
  static constexpr int CODES = COLUMNS / 16, SCALES = COLUMNS / 32, PANELS = WARPS / 4;  // copies of a thread, a word

  const signed char* codes[CODES];      // unit thread % 8 of rows thread / 8 + 16 i
  const float* scales[SCALES];          // block thread % 4 of rows thread / 4 + 32 i
  const unsigned char* panels[PANELS];  // of the first lane of each warp: warp + 4 i

  __device__ void enter(const signed char* all_codes, const float* all_scales, const unsigned char* tiles, int first, int index,
                        int rows, int last_panel, int KB) {
    const int thread = threadIdx.x - THREADS, last = rows - 1;
    // a row past the last reads the last again
#pragma unroll
    for (int i = 0; i < CODES; ++i) {
      const int row = first + thread / 8 + 16 * i;
      codes[i] = all_codes + lane::widened(row < last ? row : last, WORDS * KB * 32) + thread % 8 * 16;
    }
#pragma unroll
    for (int i = 0; i < SCALES; ++i) {
      const int row = first + thread / 4 + 32 * i;
      scales[i] = all_scales + lane::widened(row < last ? row : last, KB) + thread % 4;
    }
    const long long panel_bytes = static_cast<long long>(lane::SLICES) * lane::chunks_of_slice(KB) * WEIGHTS::BYTES;
#pragma unroll
    for (int i = 0; i < PANELS; ++i) {
      const int panel = index + thread / 32 + 4 * i;
      panels[i] = tiles + (panel < last_panel ? panel : last_panel) * panel_bytes;
    }
  }

  __device__ void copy(unsigned char* slot, barrier_t* full, const lane::Walk<4>& at, int KB) const {
    const int thread = threadIdx.x - THREADS, count = at.count();
    if (thread % 32 == 0) {
      const long long chunk = lane::widened(at.slice * lane::chunks_of_slice(KB) + at.chunk(), WEIGHTS::BYTES);
      unsigned char* to = slot + X::BYTES + thread / 32 * WEIGHTS::BYTES;
      lane::barrier_expect(full, PANELS * WEIGHTS::BYTES);
#pragma unroll
      for (int i = 0; i < PANELS; ++i) lane::bulk_copy<false>(to + i * 4 * WEIGHTS::BYTES, panels[i] + chunk, WEIGHTS::BYTES, full);
    }
    if (thread % 8 < 2 * count) {
      const int line = thread / 8;
      unsigned char* place = slot + line * 128 + (thread % 8 ^ line % 8) * 16;
#pragma unroll
      for (int word = 0; word < WORDS; ++word)
#pragma unroll
        for (int i = 0; i < CODES; ++i)
          lane::cp_async16(place + (word * COLUMNS + i * 16) * 128, codes[i] + word * KB * 32 + at.block * 32);
    }
    if (thread % 4 < count) {
      float* place = reinterpret_cast<float*>(slot + X::CODES) + thread % 4 * COLUMNS + place_of_scale(thread / 4);
#pragma unroll
      for (int i = 0; i < SCALES; ++i) lane::cp_async4(place + i * 32, scales[i] + at.block);
    }
  }
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

// Chunks of the block's tiles into the ring, by a group of their own. A stage is full when the copy engine has brought its
// panels and each thread has seen its own copies come and has shown them to the tensor core; that is one chunk later.
template <int WORDS, class W, int STAGES>
__device__ inline void feed(TileWalk walk, Source<WORDS, W>& source, unsigned char* ring, int stage_bytes, barrier_t* full, barrier_t* empty,
                            const signed char* codes, const float* scales, const unsigned char* tiles, int columns, int rows, int last_panel) {
  const auto enter = [&] {
    source.enter(codes, scales, tiles, walk.tile % columns * COLUMNS, walk.tile / columns * WARPS, rows, last_panel, walk.KB);
  };
  const auto show = [&](int stage) {
    lane::fence_proxy();
    lane::barrier_arrive(full + stage);
  };
  if (walk.more()) enter();
  int stage = 0, before = -1;
  for (unsigned parity = 1; walk.more();) {
    lane::barrier_wait(empty + stage, parity);
    source.copy(ring + stage * stage_bytes, full + stage, walk.at, walk.KB);
    lane::cp_async_commit();
    if (before >= 0) {
      lane::cp_async_wait<1>();
      show(before);
    }
    before = stage;
    if (walk.next() && walk.more()) enter();
    if (++stage == STAGES) stage = 0, parity ^= 1;
  }
  lane::cp_async_wait<0>();
  if (before >= 0) show(before);
}

template <int WORDS, int BITS, int STAGES>
__global__ void __launch_bounds__(THREADS + 128, 1)
gemm_wg(const signed char* __restrict__ codes /* [rows, WORDS, K] */, const float* __restrict__ scales /* [rows, KB] */,
        const unsigned char* __restrict__ tiles /* [panels, 8, chunks, panel bytes] */,
        float* __restrict__ y /* [planes, rows, N] */, int y_pitch, int rows, int N, int KB) {
  static_assert(STAGES >= 2, "gemm_wg: a chunk is copied while another is multiplied");
  using X = lane::ActivationStage<WORDS, COLUMNS, 4>;
  using W = lane::WeightPanels<BITS>;
  constexpr int STAGE = X::BYTES + WARPS * W::BYTES, TOTALS = 4 * PARTS * SUMS * THREADS;
  static_assert(STAGE % 1024 == 0, "gemm_wg: the swizzle of a stage's codes repeats every 1024 bytes");
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
    Source<WORDS, W> source;
    feed<WORDS, W, STAGES>(now, source, ring, STAGE, full, empty, codes, scales, tiles, columns, rows, (N + 15) / 16 - 1);
    return;
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
      lane::store16(totals + i * THREADS, uint4{lane::bits(lane::from_bits(t.x) + a[0]), lane::bits(lane::from_bits(t.y) + a[1]),
                                                lane::bits(lane::from_bits(t.z) + a[2]), lane::bits(lane::from_bits(t.w) + a[3])});
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
