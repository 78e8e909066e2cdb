// Streaming projection: the weights of a decode step go once through shared memory, at the speed of the memory.
//
// A unit is PANELS panels of `pretile` times one slice of K. Every warp streams its own units, chunk by chunk, through its
// own ring of bulk copies with one barrier a stage; no barrier of the block stands in the stream. A cluster of 1, 2, 4 or
// 8 blocks shares the slices, so that a block holds the activations of its own slices only, staged once. Slice sums are
// added in order in shared memory, passed from slice to slice by a turn: (group, slice) waits for the turn of its number.
// It can only be given by units that come earlier in the order in which every warp takes its own, so nobody waits for ever.
//
// The ring is filled before the launch waits for the one ahead of it: weights depend on nothing.
#include "hopper.cuh"
#include "projection_tile.cuh"

namespace stream {

// Chunks of the units first, first + step, .. of a block, in the order in which the warp multiplies them.
struct Feed {
  const unsigned char* tiles;
  long long slice_bytes;  // of one panel
  int bytes, chunks, slice0, slices, group0, groups, panels, panels_of_unit, units, step;
  int unit, chunk = 0;
  const unsigned char* at = nullptr;
  long long second = 0;  // from the first panel to the second; 0 where there is none

  __device__ bool more() const { return unit < units; }
  __device__ int panel() const { return (group0 + unit / slices * groups) * panels_of_unit; }
  __device__ void enter() {
    if (!more()) return;
    at = tiles + (static_cast<long long>(panel()) * lane::SLICES + slice0 + unit % slices) * slice_bytes;
    second = panel() + 1 < panels ? lane::SLICES * slice_bytes : 0;
  }
  __device__ void next() {
    at += bytes;
    if (++chunk < chunks) return;
    chunk = 0, unit += step;
    enter();
  }
};

// Stages of one warp, BYTES each for PANELS panels, and the barrier of each.
template <int PANELS, int BYTES>
struct Ring {
  unsigned char* memory;
  barrier_t* full;
  int stages, filled = 0, used = 0;
  unsigned parity = 0;

  __device__ void init() {
    if (threadIdx.x % 32 == 0) {
#pragma unroll 1
      for (int i = 0; i < stages; ++i) lane::barrier_init(full + i, 1);
      lane::barrier_publish();
    }
    __syncwarp();
  }

  __device__ void fill(Feed& feed) {
    if (!feed.more()) return;
    if (threadIdx.x % 32 == 0) {
      lane::barrier_expect(full + filled, PANELS * BYTES);
      for (int p = 0; p < PANELS; ++p)
        lane::bulk_copy(memory + (filled * PANELS + p) * BYTES, feed.at + p * feed.second, BYTES, full + filled);
    }
    filled = filled + 1 < stages ? filled + 1 : 0;
    feed.next();
    if (!feed.more()) lane::admit_next_launch();
  }

  __device__ const unsigned char* wait() const {
    lane::barrier_wait(full + used, parity);
    return memory + used * PANELS * BYTES;
  }

  // the stage that was waited for is read by all lanes and takes the next chunk
  __device__ void refill(Feed& feed) {
    __syncwarp();
    fill(feed);
    if (++used == stages) used = 0, parity ^= 1;
  }
};

// Activations of the slices of this block: codes [word][row] of `pitch` bytes, a multiple of 128 and 16, so that 8 rows lie
// in different banks; scales [slice][block of its chunks][t][tile][column 2t, 2t + 1], zero past the slice's end.
template <int WORDS, int COLS>
struct Activations {
  static constexpr int TILES = COLS / 8;
  unsigned char* codes;
  float* scales;
  int pitch, held, chunks, slice0, KB;

  __device__ int begin(int slice) const { return lane::slice_begin(slice, KB); }

  __device__ void stage(const signed char* from, const float* from_scales, int slices, int first, int rows) const {
    const int block0 = begin(slice0), units = (begin(slice0 + slices) - block0) * 2, count = rows - first < COLS ? rows - first : COLS;
    for (int i = threadIdx.x; i < units * count * WORDS; i += blockDim.x) {
      const int line = i / units, unit = i % units, row = line / WORDS, word = line % WORDS;
      lane::cp_async16(codes + (word * held + row) * pitch + unit * 16,
                       from + (static_cast<long long>(first + row) * WORDS + word) * KB * 32 + block0 * 32 + unit * 16);
    }
    const int of_slice = 4 * chunks, blocks = slices * of_slice;
    for (int i = threadIdx.x; i < blocks * count; i += blockDim.x) {
      const int row = i / blocks, j = i % blocks, slice = slice0 + j / of_slice, block = begin(slice) + j % of_slice;
      float* to = scales + j * COLS + (row % 8 / 2 * TILES + row / 8) * 2 + row % 2;
      if (block < begin(slice + 1)) lane::cp_async4(to, from_scales + static_cast<long long>(first + row) * KB + block);
      else *to = 0.0f;
    }
    lane::cp_async_commit();
    lane::cp_async_wait<0>();
  }

  // where this lane's rows of ldmatrix lie: matrices are the halves of two blocks, rows the columns of one tile
  __device__ const unsigned char* lane_codes(int slice) const {
    const int l = threadIdx.x % 32, row = l % 8 < held ? l % 8 : held - 1;
    return codes + row * pitch + l / 8 * 16 + (begin(slice) - begin(slice0)) * 32;
  }
  __device__ const float* lane_scales(int slice) const {
    return scales + (slice - slice0) * 4 * chunks * COLS + threadIdx.x % 4 * TILES * 2;
  }
};

// the two columns of a tile, or of two
__device__ inline void load_scales(float (&xs)[1][2], const float* p) {
  const uint2 v = lane::load8(p);
  xs[0][0] = lane::from_bits(v.x), xs[0][1] = lane::from_bits(v.y);
}
__device__ inline void load_scales(float (&xs)[2][2], const float* p) {
  const uint4 v = lane::load16(p);
  xs[0][0] = lane::from_bits(v.x), xs[0][1] = lane::from_bits(v.y);
  xs[1][0] = lane::from_bits(v.z), xs[1][1] = lane::from_bits(v.w);
}

// acc += one chunk of 4 blocks, read two blocks at a time
template <class W, int WORDS, int PANELS, int TILES>
__device__ inline void multiply(float (&acc)[PANELS][TILES][4], const unsigned char* stage, const unsigned char* codes, int pitch,
                                int word_bytes, const float* scales) {
  constexpr int STEP = TILES > 1 ? 2 : 1;  // tiles whose scales one load brings
  // two words of 64 sequences leave no registers for the second pair
  constexpr int UNROLL = WORDS * TILES < 16 ? 2 : 1;
  const int g = threadIdx.x % 32 / 4;
  uint4 ws[PANELS];
#pragma unroll
  for (int p = 0; p < PANELS; ++p) ws[p] = lane::load16(stage + p * W::BYTES + W::CODES + g * 16);
#pragma unroll UNROLL
  for (int pair = 0; pair < 2; ++pair) {
    unsigned a[PANELS][2][4];
    lane::WeightScale s[PANELS][2][2];
    float xs[2][STEP][2];
#pragma unroll
    for (int q = 0; q < 2; ++q) {
#pragma unroll
      for (int p = 0; p < PANELS; ++p) {
        W::row_fragment(a[p][q], stage + p * W::BYTES, 2 * pair + q);
        const unsigned rows[2] = {pair ? ws[p].y : ws[p].x, pair ? ws[p].w : ws[p].z};
#pragma unroll
        for (int half = 0; half < 2; ++half)
          s[p][q][half] = lane::weight_scale(half_t{static_cast<unsigned short>(rows[half] >> 16 * q)});
      }
    }
#pragma unroll
    for (int j = 0; j < TILES; ++j) {
      if (j % STEP == 0)
#pragma unroll
        for (int q = 0; q < 2; ++q) load_scales(xs[q], scales + ((2 * pair + q) * 4 * TILES + j) * 2);
      unsigned f[WORDS][4];
#pragma unroll
      for (int word = 0; word < WORDS; ++word)
        lane::ldmatrix_x4(f[word], codes + word * word_bytes + j * 8 * pitch + pair * 64);
#pragma unroll
      for (int q = 0; q < 2; ++q)
#pragma unroll
        for (int p = 0; p < PANELS; ++p) {
          int d[WORDS][4];
#pragma unroll
          for (int word = 0; word < WORDS; ++word) {
            const unsigned b[2] = {f[word][2 * q], f[word][2 * q + 1]};
            lane::mma_s8(d[word], a[p][q], b, lane::MAGIC);
          }
          lane::add_products<WORDS, true>(acc[p][j], d, s[p][q], xs[q][j % STEP]);
        }
    }
  }
}

// Sums of a group of panels on their way from slice to slice, a slot a group: words of 4 floats [panel and tile][lane].
template <int PANELS, int TILES>
struct Turns {
  static constexpr int WORDS = PANELS * TILES;
  using Sums = float[PANELS][TILES][4];
  float* totals;
  unsigned* flags;
  int slots;
  unsigned rank, ranks;

  __device__ float* total(int group) const { return totals + group % slots * WORDS * 128 + threadIdx.x % 32 * 4; }
  __device__ static unsigned number(int group, int slice) { return static_cast<unsigned>(group * lane::SLICES + slice); }

  // slot i is free for group i; elsewhere no turn has been given
  __device__ void init() const {
    if (threadIdx.x < slots) flags[threadIdx.x] = rank == 0 ? number(threadIdx.x, 0) : ~0u;
  }

  // sums becomes the total of slices 0 .. slice; the turn of a block's first slice is given by another block
  __device__ void take(Sums& sums, int group, int slice, bool from_far) const {
    const unsigned* flag = flags + group % slots;
    if (from_far) lane::await_flag<true>(flag, number(group, slice));
    else lane::await_flag<false>(flag, number(group, slice));
    const float* from = total(group);
#pragma unroll
    for (int i = 0; i < WORDS; ++i) {
      float(&s)[4] = sums[i / TILES][i % TILES];
      const uint4 v = slice ? lane::load16(from + i * 128) : uint4{0, 0, 0, 0};
      s[0] = lane::from_bits(v.x) + s[0], s[1] = lane::from_bits(v.y) + s[1];
      s[2] = lane::from_bits(v.z) + s[2], s[3] = lane::from_bits(v.w) + s[3];
    }
  }

  // gives them to the next slice, in the block of that rank; the last slice frees the slot for a later group
  __device__ void give(const Sums& sums, int group, int slice, unsigned to) const {
    const bool last = slice == lane::SLICES - 1, far = to != rank;
    if (!last) {
      float* at = far ? lane::of_block(total(group), to) : total(group);
#pragma unroll
      for (int i = 0; i < WORDS; ++i) {
        const float(&s)[4] = sums[i / TILES][i % TILES];
        lane::store16(at + i * 128, uint4{lane::bits(s[0]), lane::bits(s[1]), lane::bits(s[2]), lane::bits(s[3])});
      }
    }
    __syncwarp();
    if (threadIdx.x % 32) return;
    unsigned* flag = flags + group % slots;
    const unsigned turn = last ? number(group + slots, 0) : number(group, slice + 1);
    if (far) lane::raise_flag<true>(lane::of_block(flag, to), turn);
    else lane::raise_flag<false>(flag, turn);
  }
};

}  // namespace stream

template <int WORDS, int BITS, int COLS, int PANELS>
__global__ void __launch_bounds__(COLS <= 16 ? 512 : 256, 1)
projection_stream(const signed char* __restrict__ codes /* [rows, WORDS, K] */, const float* __restrict__ scales /* [rows, KB] */,
                  const unsigned char* __restrict__ tiles /* [panels, 8, chunks, panel bytes] */,
                  float* __restrict__ y /* [rows, N] */, int y_pitch, int rows, int N, int KB, int stages, int slots) {
  static_assert(COLS % 8 == 0 && COLS >= 8 && COLS <= 64, "projection_stream: a block holds 8 to 64 sequences, 8 a fragment");
  static_assert(PANELS == 1 || PANELS == 2, "projection_stream: a warp streams one panel or two");
  using W = lane::WeightPanels<BITS>;
  constexpr int TILES = COLS / 8, SUMS = PANELS * TILES * 4;
  DYNAMIC_SHARED(unsigned char, memory);
  const int warp = threadIdx.x / 32, warps = blockDim.x / 32, l = threadIdx.x % 32;
  const unsigned rank = lane::cluster_rank(), ranks = lane::cluster_blocks();
  const int slices = lane::SLICES / ranks, slice0 = rank * slices, chunks = lane::chunks_of_slice(KB), first = blockIdx.y * COLS;
  const int clusters = gridDim.x / ranks, panels = (N + 15) / 16, all = (panels + PANELS - 1) / PANELS, cluster = blockIdx.x / ranks;
  const int groups = cluster < all ? (all - cluster + clusters - 1) / clusters : 0;
  // blocks of the widest share of a rank; a row has room for what the padding of a last chunk reads past it
  const int share = (KB * slices + lane::SLICES - 1) / lane::SLICES, pitch = (share * 32 + 128 + 127) / 128 * 128 + 16;
  const int held = COLS == 8 && rows < 8 ? rows : COLS;

  unsigned char* free = memory;
  const auto take = [&](int bytes) { return free += bytes, free - bytes; };
  unsigned char* stage_memory = take(warps * stages * PANELS * W::BYTES);
  float* totals = reinterpret_cast<float*>(take(slots * SUMS * 128));
  float* held_scales = reinterpret_cast<float*>(take(slices * chunks * 4 * COLS * 4));
  unsigned char* held_codes = take(WORDS * held * pitch);
  barrier_t* full = reinterpret_cast<barrier_t*>(take(warps * stages * 8));
  const stream::Activations<WORDS, COLS> x{held_codes, held_scales, pitch, held, chunks, slice0, KB};
  const stream::Turns<PANELS, TILES> turns{totals, reinterpret_cast<unsigned*>(free), slots, rank, ranks};
  stream::Ring<PANELS, W::BYTES> ring{stage_memory + warp * stages * PANELS * W::BYTES, full + warp * stages, stages};
  stream::Feed feed{tiles, static_cast<long long>(chunks) * W::BYTES, W::BYTES, chunks, slice0, slices, cluster, clusters, panels,
                    PANELS, groups * slices, warps, warp};

  ring.init();
  feed.enter();
#pragma unroll 1
  for (int i = 0; i < stages; ++i) ring.fill(feed);
  turns.init();
  lane::await_launches_before();
  x.stage(codes, scales, slices, first, rows);
  if (ranks > 1) lane::cluster_barrier();
  else __syncthreads();

  for (int unit = warp; unit < groups * slices; unit += warps) {
    const int group = unit / slices, slice = slice0 + unit % slices;
    const unsigned char* at = x.lane_codes(slice);
    const float* at_scales = x.lane_scales(slice);
    float sums[PANELS][TILES][4] = {};
    for (int chunk = 0; chunk < chunks; ++chunk, at += 128, at_scales += 4 * COLS) {
      stream::multiply<W, WORDS, PANELS, TILES>(sums, ring.wait(), at, pitch, held * pitch, at_scales);
      ring.refill(feed);
    }
    turns.take(sums, group, slice, ranks > 1 && slice == slice0);
    if (slice == lane::SLICES - 1) {
      const int panel = (cluster + group * clusters) * PANELS, column = first + l % 4 * 2;
#pragma unroll
      for (int i = 0; i < SUMS; ++i) {
        const int row = column + i / 4 % TILES * 8 + i % 2, n = (panel + i / 4 / TILES) * 16 + l / 4 + i % 4 / 2 * 8;
        if (row < rows && n < N) y[static_cast<long long>(row) * y_pitch + n] = sums[i / 4 / TILES][i / 4 % TILES][i % 4];
      }
    }
    turns.give(sums, group, slice, slice + 1 < slice0 + slices ? rank : (rank + 1) % ranks);
  }
  if (ranks > 1) lane::cluster_barrier();
}
