// What a warpgroup tile reads: the order of its chunks, and the group of warps that copies them into a ring of stages.
//
// A stage holds a chunk of 4 blocks: codes [word][row] of 128 bytes, swizzled; scales [block][row]; 8 panels, which the
// copy engine brings.
#pragma once
#include "columns.cuh"
#include "hopper.cuh"
#include "projection_tile.cuh"

namespace warpgroup {

constexpr int GROUPS = 2, WARPS = 4 * GROUPS, THREADS = 32 * WARPS, COLUMNS = 128;

template <class ACTIVATIONS, class WEIGHTS>
struct Stage {
  static constexpr int BYTES = ACTIVATIONS::BYTES + WARPS * WEIGHTS::BYTES;
  static_assert(BYTES % 1024 == 0, "gemm_wg: the swizzle of a stage's codes repeats every 1024 bytes");
};

// chunks of the tiles blockIdx.x, blockIdx.x + gridDim.x, .. in the order in which they are multiplied
struct TileWalk {
  lane::Slices share;
  int tile, tiles, KB;
  lane::Walk<4> at;
  __device__ TileWalk(lane::Slices s, int all, int blocks)
      : share(s), tile(blockIdx.x), tiles(all), KB(blocks), at(s, blocks) {}
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

  __device__ void enter(const signed char* all_codes, const float* all_scales, const unsigned char* tiles, int first,
                        int index, int rows, int last_panel, int KB) {
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
      for (int i = 0; i < PANELS; ++i)
        lane::bulk_copy<false>(to + i * 4 * WEIGHTS::BYTES, panels[i] + chunk, WEIGHTS::BYTES, full);
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
      float* place = reinterpret_cast<float*>(slot + X::CODES) + thread % 4 * COLUMNS + lane::place_of_scale(thread / 4);
#pragma unroll
      for (int i = 0; i < SCALES; ++i) lane::cp_async4(place + i * 32, scales[i] + at.block);
    }
  }
};

// Chunks of the block's tiles into the ring, by a group of their own. A stage is full when the copy engine has brought its
// panels and each thread has seen its own copies come and has shown them to the tensor core; that is one chunk later.
template <int WORDS, class W, int STAGES>
__device__ inline void feed(TileWalk walk, unsigned char* ring, barrier_t* full, barrier_t* empty, const signed char* codes,
                            const float* scales, const unsigned char* tiles, int columns, int rows, int last_panel) {
  constexpr int STAGE = Stage<lane::ActivationStage<WORDS, COLUMNS, 4>, W>::BYTES;
  Source<WORDS, W> source;
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
    source.copy(ring + stage * STAGE, full + stage, walk.at, walk.KB);
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

}  // namespace warpgroup
