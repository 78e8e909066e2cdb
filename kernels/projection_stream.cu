// Streaming projection: the weights of a decode step go once through shared memory, at the speed of the memory.
//
// A unit is PANELS panels of `pretile` times one slice of K. Every warp streams its own units, chunk by chunk, through its
// own ring of bulk copies with one barrier a stage; no barrier of the block stands in the stream. A block goes through its
// panels in bands of `width` groups and through a band slice by slice, so that it needs the activations of one slice at a
// time: `held` buffers of them, each filled again by the warp that finishes the last unit that reads it. Slice sums are
// added in order in shared memory, by turns: slice s of a group waits until slice s - 1 has been added. That unit came
// `width` units earlier in the order in which every warp takes its own, so waits are rare and never for ever. With the
// slices split over blockIdx.z there are no turns: every slice sum is stored to its plane.
//
// The rings are filled before the launch waits for the one ahead of it: weights depend on nothing.
#include "hopper.cuh"
#include "projection_tile.cuh"

namespace stream {

// One unit: group `index` of the `wide` of its band, times a slice counted from the block's first.
struct Unit {
  int band, slice, index, wide;
};

// The units of a block: of the groups group0, group0 + stride, .. it has `groups`.
struct Order {
  int slice0, slices, group0, stride, groups, width;

  __device__ int units() const { return groups * slices; }
  __device__ int passes() const { return (groups + width - 1) / width * slices; }
  __device__ int wide(int band) const { return groups - band * width < width ? groups - band * width : width; }
  __device__ Unit at(int unit) const {
    const int band = unit / (width * slices), rest = unit - band * (width * slices), columns = wide(band), slice = rest / columns;
    return {band, slice, rest - slice * columns, columns};
  }
  __device__ int group(const Unit& u) const { return group0 + (u.band * width + u.index) * stride; }
};

// Chunks of the units unit, unit + step, .. in the order in which the warp multiplies them.
struct Feed {
  const Order& order;
  const unsigned char* tiles;
  long long slice_bytes;  // of one panel
  int bytes, chunks, panels, panels_of_unit, step;
  int unit, chunk = 0;
  const unsigned char* at = nullptr;
  long long second = 0;  // from the first panel to the second; 0 where there is none

  __device__ bool more() const { return unit < order.units(); }
  __device__ void enter() {
    if (!more()) return;
    const Unit u = order.at(unit);
    const int panel = order.group(u) * panels_of_unit;
    at = tiles + (static_cast<long long>(panel) * lane::SLICES + order.slice0 + u.slice) * slice_bytes;
    second = panel + 1 < panels ? lane::SLICES * slice_bytes : 0;
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

// Activations of a block: `held` buffers of codes [word][row] of one slice, rows `pitch` bytes apart, a multiple of 128 and
// 16, so that 8 rows lie in different banks; scales of all its slices [slice][block of its chunks][t][tile][column 2t, 2t + 1],
// zero past the slice's end.
template <int WORDS, int COLS>
struct Activations {
  static constexpr int TILES = COLS / 8;
  const Order& order;
  unsigned char* codes;
  float* scales;
  barrier_t* full;
  unsigned *issued, *done;  // a buffer each: the last fill asked for, and the units that are finished of its pass
  int pitch, room, held, chunks, KB, count;
  const signed char* from;  // codes of the first row

  __device__ int begin(int slice) const { return lane::slice_begin(slice, KB); }
  __device__ bool resident() const { return held >= order.slices; }
  __device__ int first_fills() const { return resident() ? order.slices : held < order.passes() ? held : order.passes(); }
  __device__ int fill_of(const Unit& u) const { return resident() ? u.slice : u.band * order.slices + u.slice; }

  __device__ void init() const {
    if (threadIdx.x >= held) return;
    lane::barrier_init(full + threadIdx.x, 1);
    lane::barrier_publish();
    issued[threadIdx.x] = threadIdx.x, done[threadIdx.x] = 0;
  }

  // fill number `fill`, by one warp: a row of a slice is one copy
  __device__ void load(int fill) const {
    const int buffer = fill % held, slice = order.slice0 + fill % order.slices;
    const int bytes = (begin(slice + 1) - begin(slice)) * lane::QUANTUM;
    if (threadIdx.x % 32 == 0) lane::barrier_expect(full + buffer, bytes * count * WORDS);
    __syncwarp();
    if (bytes == 0) return;
    for (int line = threadIdx.x % 32; line < count * WORDS; line += 32) {
      const int row = line / WORDS, word = line % WORDS;
      lane::bulk_copy<false>(codes + ((buffer * WORDS + word) * room + row) * pitch,
                             from + (static_cast<long long>(line) * KB + begin(slice)) * lane::QUANTUM, bytes, full + buffer);
    }
  }

  // A warp may come before its fill is asked for: the barrier's phase would then be taken for the one before the last.
  __device__ void wait(const Unit& u) const {
    const int fill = fill_of(u), buffer = fill % held;
    lane::await_flag<false>(issued + buffer, static_cast<unsigned>(fill));
    lane::barrier_wait(full + buffer, fill / held & 1);
  }

  // the warp that finishes a pass fills its buffer for the pass that takes it next
  __device__ void finish(const Unit& u) const {
    if (resident()) return;
    __syncwarp();
    const int fill = fill_of(u);
    bool last = false;
    if (threadIdx.x % 32 == 0) {
      last = atomicAdd(done + fill % held, 1u) + 1 == static_cast<unsigned>(u.wide);
      if (last) done[fill % held] = 0;
    }
    if (!__shfl_sync(0xFFFFFFFFu, static_cast<int>(last), 0) || fill + held >= order.passes()) return;
    load(fill + held);
    __syncwarp();
    if (threadIdx.x % 32 == 0) lane::raise_flag<false>(issued + fill % held, static_cast<unsigned>(fill + held));
  }

  __device__ void stage_scales(const float* source) const {
    const int of_slice = 4 * chunks, blocks = order.slices * of_slice;
    for (int i = threadIdx.x; i < blocks * count; i += blockDim.x) {
      const int row = i / blocks, j = i % blocks, slice = order.slice0 + j / of_slice, block = begin(slice) + j % of_slice;
      float* to = scales + j * COLS + (row % 8 / 2 * TILES + row / 8) * 2 + row % 2;
      if (block < begin(slice + 1)) lane::cp_async4(to, source + static_cast<long long>(row) * KB + block);
      else *to = 0.0f;
    }
    lane::cp_async_commit();
    lane::cp_async_wait<0>();
  }

  // where this lane's rows of ldmatrix lie: matrices are the halves of two blocks, rows the columns of one tile
  __device__ const unsigned char* lane_codes(const Unit& u) const {
    const int l = threadIdx.x % 32, row = l % 8 < room ? l % 8 : room - 1;
    return codes + (fill_of(u) % held * WORDS * room + row) * pitch + l / 8 * 16;
  }
  __device__ const float* lane_scales(const Unit& u) const {
    return scales + u.slice * 4 * chunks * COLS + threadIdx.x % 4 * TILES * 2;
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
  // where sums take many registers, or 16 warps leave few, none are left for the second pair
  constexpr int UNROLL = WORDS * PANELS * TILES >= 16 || (WORDS == 2 && TILES == 2) ? 1 : 2;
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

// Sums of a group of panels on their way from slice to slice, a slot a group of the band: words of 4 floats [panel and
// tile][lane].
template <int PANELS, int TILES>
struct Turns {
  static constexpr int WORDS = PANELS * TILES;
  using Sums = float[PANELS][TILES][4];
  float* totals;
  unsigned* flags;
  int slots;

  __device__ static unsigned number(const Unit& u, int slice) { return static_cast<unsigned>(u.band * lane::SLICES + slice); }

  __device__ void init() const {
    if (threadIdx.x < slots) flags[threadIdx.x] = 0;
  }

  // sums becomes the total of slices 0 .. slice
  __device__ void take(Sums& sums, const Unit& u) const {
    lane::await_flag<false>(flags + u.index, number(u, u.slice));
    const float* from = totals + u.index * WORDS * 128 + threadIdx.x % 32 * 4;
#pragma unroll
    for (int i = 0; i < WORDS; ++i) {
      float(&s)[4] = sums[i / TILES][i % TILES];
      const uint4 v = u.slice ? lane::load16(from + i * 128) : uint4{0, 0, 0, 0};
      s[0] = lane::from_bits(v.x) + s[0], s[1] = lane::from_bits(v.y) + s[1];
      s[2] = lane::from_bits(v.z) + s[2], s[3] = lane::from_bits(v.w) + s[3];
    }
  }

  // gives them to the next slice; the last slice frees the slot for a group of the next band
  __device__ void give(const Sums& sums, const Unit& u) const {
    float* at = totals + u.index * WORDS * 128 + threadIdx.x % 32 * 4;
    if (u.slice < lane::SLICES - 1)
#pragma unroll
      for (int i = 0; i < WORDS; ++i) {
        const float(&s)[4] = sums[i / TILES][i % TILES];
        lane::store16(at + i * 128, uint4{lane::bits(s[0]), lane::bits(s[1]), lane::bits(s[2]), lane::bits(s[3])});
      }
    __syncwarp();
    if (threadIdx.x % 32 == 0) lane::raise_flag<false>(flags + u.index, number(u, u.slice + 1));
  }
};

}  // namespace stream

template <int WORDS, int BITS, int COLS, int PANELS>
__global__ void __launch_bounds__(COLS <= 16 ? 512 : 256, 1)
projection_stream(const signed char* __restrict__ codes /* [rows, WORDS, K] */, const float* __restrict__ scales /* [rows, KB] */,
                  const unsigned char* __restrict__ tiles /* [panels, 8, chunks, panel bytes] */,
                  float* __restrict__ y /* [planes, rows, N] */, int y_pitch, int rows, int N, int KB, int stages, int width, int held) {
  static_assert(COLS % 8 == 0 && COLS >= 8 && COLS <= 64, "projection_stream: a block holds 8 to 64 sequences, 8 a fragment");
  static_assert(PANELS == 1 || PANELS == 2, "projection_stream: a warp streams one panel or two");
  using W = lane::WeightPanels<BITS>;
  constexpr int TILES = COLS / 8, SUMS = PANELS * TILES * 4;
  DYNAMIC_SHARED(unsigned char, memory);
  const int warp = threadIdx.x / 32, warps = blockDim.x / 32, l = threadIdx.x % 32, splits = gridDim.z;
  const int chunks = lane::chunks_of_slice(KB), first = blockIdx.y * COLS, panels = (N + 15) / 16;
  const int all = (panels + PANELS - 1) / PANELS, own = static_cast<int>(blockIdx.x), stride = static_cast<int>(gridDim.x);
  const lane::Slices share(blockIdx.z, splits);
  const stream::Order order{share.first, share.last - share.first, own, stride, own < all ? (all - own + stride - 1) / stride : 0, width};
  // a row has room for what the padding of a last chunk reads past the longest slice
  const int pitch = (((KB + lane::SLICES - 1) / lane::SLICES) * 32 + 128 + 127) / 128 * 128 + 16;
  const int room = COLS == 8 && rows < 8 ? rows : COLS;

  unsigned char* free = memory;
  const auto take = [&](int bytes) { return free += bytes, free - bytes; };
  unsigned char* stage_memory = take(warps * stages * PANELS * W::BYTES);
  float* totals = reinterpret_cast<float*>(take(splits > 1 ? 0 : width * SUMS * 128));
  float* held_scales = reinterpret_cast<float*>(take(order.slices * chunks * 4 * COLS * 4));
  unsigned char* held_codes = take(held * WORDS * room * pitch);
  barrier_t* full = reinterpret_cast<barrier_t*>(take((warps * stages + held) * 8));
  unsigned* fills = reinterpret_cast<unsigned*>(take(held * 8));
  stream::Activations<WORDS, COLS> x{order, held_codes, held_scales, full + warps * stages, fills, fills + held, pitch, room, held, chunks, KB,
                                     rows - first < COLS ? rows - first : COLS, codes + static_cast<long long>(first) * WORDS * KB * 32};
  const stream::Turns<PANELS, TILES> turns{totals, reinterpret_cast<unsigned*>(free), splits > 1 ? 0 : width};
  stream::Ring<PANELS, W::BYTES> ring{stage_memory + warp * stages * PANELS * W::BYTES, full + warp * stages, stages};
  stream::Feed feed{order, tiles, static_cast<long long>(chunks) * W::BYTES, W::BYTES, chunks, panels, PANELS, warps, warp};

  ring.init();
  feed.enter();
#pragma unroll 1
  for (int i = 0; i < stages; ++i) ring.fill(feed);
  turns.init();
  x.init();
  __syncthreads();
  lane::await_launches_before();
  if (order.groups > 0)
    for (int fill = warp; fill < x.first_fills(); fill += warps) x.load(fill);
  x.stage_scales(scales + static_cast<long long>(first) * KB);
  __syncthreads();

  for (int i = warp; i < order.units(); i += warps) {
    const stream::Unit unit = order.at(i);
    x.wait(unit);
    const unsigned char* at = x.lane_codes(unit);
    const float* at_scales = x.lane_scales(unit);
    float sums[PANELS][TILES][4] = {};
    for (int chunk = 0; chunk < chunks; ++chunk, at += 128, at_scales += 4 * COLS) {
      stream::multiply<W, WORDS, PANELS, TILES>(sums, ring.wait(), at, pitch, room * pitch, at_scales);
      ring.refill(feed);
    }
    x.finish(unit);
    const int slice = order.slice0 + unit.slice;
    if (splits == 1) turns.take(sums, unit);
    if (splits > 1 || slice == lane::SLICES - 1) {
      const int panel = order.group(unit) * PANELS, column = first + l % 4 * 2;
      float* plane = y + static_cast<long long>(splits > 1 ? slice : 0) * rows * y_pitch;
#pragma unroll
      for (int v = 0; v < SUMS; ++v) {
        const int row = column + v / 4 % TILES * 8 + v % 2, n = (panel + v / 4 / TILES) * 16 + l / 4 + v % 4 / 2 * 8;
        const float sum = sums[v / 4 / TILES][v / 4 % TILES][v % 4];
        // a plane is 0 + its slice's sum, as whoever adds the planes finds it
        if (row < rows && n < N) plane[static_cast<long long>(row) * y_pitch + n] = splits > 1 ? 0.0f + sum : sum;
      }
    }
    if (splits == 1) turns.give(sums, unit);
  }
}
