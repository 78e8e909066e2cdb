// Streaming projection: the weights of a decode step go once through shared memory, at the speed of the memory.
//
// Every warp streams its own panels of weights, each through all of K, through its own ring of bulk copies with one barrier a
// stage; no barrier of the block stands in the stream, and no warp waits for a sum of another. With the slices split over
// blockIdx.z every slice sum is stored to its plane.
//
// A launch asks for weights before it waits for the one ahead of it: they depend on nothing. It admits the next one when
// it has asked for its last weights, so that the memory is never without a request: earlier, and the rings of the next launch
// would be full before this one ends, and nothing left to ask for in between.
#include "projection_tile.cuh"
#include "stream_activations.cuh"
#include "stream_ring.cuh"
#include "stream_row.cuh"

namespace stream {

// Warps of a block; many sums leave registers for fewer.
template <int WORDS, int COLS>
constexpr int MOST_WARPS = TOGETHER<WORDS, COLS> ? 12 : 20;

// Whether the products of a stage take longer than the next one needs to come.
template <int WORDS, int COLS>
constexpr bool SLOW = WORDS * COLS >= 32;

// Fences between products of a warp, the fastest of some hundreds tried on an H200: bit 4 b + j / 2 stands for tiles j and j + 1 of
// block b. The compiler moves no load and no addition over one, and so has the products on their way, and the scales at hand, for
// which there are registers beside the sums; a register file gives two operands a cycle, where additions have three.
template <class W, int WORDS, int SUMS>
constexpr unsigned FENCES = W::PAIRS     ? 0xEEEE
                            : SUMS == 16 ? (WORDS == 1 ? 0x3224 : 0xFFFF)
                            : SUMS == 8  ? (WORDS == 1 ? 0x0042 : 0x1000)
                                         : 0;

// Sums of tiles j .. j + COUNT - 1 += dots on MAGIC of a block of each panel, times scales s[][b] of its rows and `by` of the
// columns 2t and 2t + 1 of every tile. What shares a scale stands together.
template <int WORDS, int PANELS, int TILES, int COUNT>
__device__ inline void add_tiles(float (&acc)[PANELS][TILES][4], int j, const int (&d)[PANELS][COUNT][WORDS][4],
                                 const lane::WeightScale (&s)[PANELS][2][2], int b, const float (&by)[2 * COUNT]) {
  float t[PANELS][COUNT][4];
#pragma unroll
  for (int p = 0; p < PANELS; ++p)
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int i = 0; i < 2 * COUNT; ++i)
        t[p][i / 2][2 * half + i % 2] = lane::scaled_product<WORDS, true>(d[p][i / 2], 2 * half + i % 2, s[p][b]);
#pragma unroll
  for (int i = 0; i < 2 * COUNT; ++i)
#pragma unroll
    for (int p = 0; p < PANELS; ++p)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float& sum = acc[p][j + i / 2][2 * half + i % 2];
        sum = fmaf(t[p][i / 2][2 * half + i % 2], by[i], sum);
      }
}

// acc += block b of a chunk, of PANELS panels, two tiles at a time: one load of codes a word, and one of scales
template <class W, int WORDS, int PANELS, int TILES, class X>
__device__ inline void multiply(float (&acc)[PANELS][TILES][4], const unsigned (&w)[PANELS][2][4],
                                const lane::WeightScale (&s)[PANELS][2][2], const X& x, const typename X::View& at, int b) {
  const unsigned char *codes = at.codes + 2 * b * X::unit_bytes(x.room), *scales = at.scales + b * X::line_bytes(x.room);
#pragma unroll
  for (int j = 0; j < TILES; j += 2) {
    if (FENCES<W, WORDS, PANELS * TILES> >> (4 * b + j / 2) & 1) __syncwarp();
    int d[PANELS][2][WORDS][4];
#pragma unroll
    for (int word = 0; word < WORDS; ++word) {
      unsigned columns[4];
      lane::ldmatrix_x4(columns, codes + word * x.room * 16 + j * 128);
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const unsigned pair[2] = {columns[2 * k], columns[2 * k + 1]};
#pragma unroll
        for (int p = 0; p < PANELS; ++p) lane::mma_s8(d[p][k][word], w[p][b % 2], pair, W::MAGIC);
      }
    }
    const uint4 xs = lane::load16(scales + j * 32);
    const float by[4] = {lane::from_bits(xs.x), lane::from_bits(xs.y), lane::from_bits(xs.z), lane::from_bits(xs.w)};
    add_tiles<WORDS, PANELS, TILES, 2>(acc, j, d, s, b % 2, by);
  }
}

// acc += blocks b and b + 1 of one tile: one load of codes a word
template <class W, int WORDS, class X>
__device__ inline void multiply_pair(float (&acc)[1][1][4], const unsigned (&w)[1][2][4], const lane::WeightScale (&s)[1][2][2],
                                     const X& x, const typename X::View& at, int b) {
  int d[2][1][1][WORDS][4];
#pragma unroll
  for (int word = 0; word < WORDS; ++word) {
    unsigned columns[4];
    lane::ldmatrix_x4(columns, at.codes + 2 * b * X::unit_bytes(x.room) + word * x.room * 16);
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const unsigned pair[2] = {columns[2 * k], columns[2 * k + 1]};
      lane::mma_s8(d[k][0][0][word], w[0][k], pair, W::MAGIC);
    }
  }
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    const uint2 xs = lane::load8(at.scales + (b + k) * X::line_bytes(x.room));
    const float by[2] = {lane::from_bits(xs.x), lane::from_bits(xs.y)};
    add_tiles<WORDS, 1, 1, 1>(acc, 0, d[k], s, k, by);
  }
}

// acc += the chunk at `stage`, and that of the other panel behind it; once they are in registers, release() is called
template <class W, int WORDS, int PANELS, int TILES, class X, class RELEASE>
__device__ inline void multiply_chunk(float (&acc)[PANELS][TILES][4], const unsigned char* stage, const X& x,
                                      const typename X::View& at, RELEASE release) {
  typename W::RowScales scales[PANELS];
#pragma unroll
  for (int p = 0; p < PANELS; ++p) scales[p].load(stage + p * W::BYTES);
#pragma unroll
  for (int first = 0; first < W::BLOCKS; first += 2) {
    unsigned w[PANELS][2][4];
    lane::WeightScale s[PANELS][2][2];
#pragma unroll
    for (int b = 0; b < 2; ++b) {
#pragma unroll
      for (int p = 0; p < PANELS; ++p) {
        W::row_fragments(w[p], stage + p * W::BYTES, first, b);
        scales[p].of(s[p][b], first + b);
      }
      if (first + b + 1 == W::BLOCKS) release();
      if constexpr (TILES > 1) multiply<W, WORDS>(acc, w, s, x, at, first + b);
    }
    if constexpr (TILES == 1) multiply_pair<W, WORDS>(acc, w, s, x, at, first);
  }
}

// What a warp has of its panel's slices so far, in shared memory, where it is touched once a slice: [tile][lane][4].
template <int TILES>
struct Totals {
  float* memory;

  // sums becomes the total with it, from 0; kept unless it is the last
  __device__ void add(float (&sums)[TILES][4], bool first, bool last) const {
    float* at = memory + lane::opaque(threadIdx.x) % 32 * 4;
#pragma unroll
    for (int j = 0; j < TILES; ++j) {
      float(&s)[4] = sums[j];
      const uint4 v = first ? uint4{0, 0, 0, 0} : lane::load16(at + j * 128);
      s[0] = lane::from_bits(v.x) + s[0], s[1] = lane::from_bits(v.y) + s[1];
      s[2] = lane::from_bits(v.z) + s[2], s[3] = lane::from_bits(v.w) + s[3];
      if (!last) lane::store16(at + j * 128, uint4{lane::bits(s[0]), lane::bits(s[1]), lane::bits(s[2]), lane::bits(s[3])});
    }
  }
};

// Sums of a panel of rows from n on; columns 2t and 2t + 1 of every tile from `row` on.
template <int TILES>
__device__ inline void store(float* y, int y_pitch, int row, int rows, int n, int N, const float (&sums)[TILES][4]) {
  const int l = lane::opaque(threadIdx.x) % 32;
  row += l % 4 * 2, n += l / 4;
  float* at = y + lane::widened(row, y_pitch) + n;
#pragma unroll
  for (int j = 0; j < TILES; ++j)
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      if (row + 8 * j + side < rows)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          if (n + 8 * half < N) at[8 * half] = sums[j][2 * half + side];
      at += side ? 7LL * y_pitch : y_pitch;
    }
}

// What a warp of a block computes with.
template <class W, int WORDS, int COLS>
struct Warp {
  using X = Activations<WORDS, COLS>;
  const Order<TOGETHER<WORDS, COLS>>& order;
  const X& x;
  Ring<W::BYTES>& ring;
  Feed<W::BYTES, TOGETHER<WORDS, COLS>>& feed;
  float *totals, *y;
  int y_pitch, rows, N;
  bool split, resident;  // split: between blocks, every slice goes to its plane

  // One unit: tiles from `tile` on, of PANELS panels, through all slices.
  template <int PANELS, int TILES>
  __device__ void run(typename X::Place& place, int unit, int tile) const {
    constexpr bool EACH = PANELS == 2;  // a chunk of each is a stage: nothing is to be counted
    const unsigned char* stage = nullptr;
    int staged = 0;  // chunks of the stage that are not multiplied
    for (int slice = 0; slice < order.slices; ++slice) {
      float sums[PANELS][TILES][4] = {};
      for (int rest = x.chunks; rest > 0; x.next(place)) {
        x.wait(place);
        typename X::View view = x.template view<TILES>(place, tile);
        for (int n = rest < x.part ? rest : x.part; n > 0; --n, --rest, x.next(view), stage += W::BYTES) {
          if (EACH || staged == 0) {
            const int left = (order.slices - 1 - slice) * x.chunks + rest;  // of the panel
            stage = ring.wait(), staged = EACH || left < feed.span ? left : feed.span;
          }
          // the stage is read once its last chunk is in registers
          const auto release = [&] {
            if (EACH || --staged == 0) ring.refill(feed);
          };
          multiply_chunk<W, WORDS>(sums, stage, x, view, release);
        }
        if (!resident) x.release(place);
      }
      // slices are added in order from 0, here or by whoever reads the planes, which holds 0 + its sum
      const bool last = split || slice + 1 == order.slices;
#pragma unroll
      for (int p = 0; p < PANELS; ++p) {
        Totals<TILES>{totals + (p * (COLS / 8) + tile) * 128}.add(sums[p], split || slice == 0, last);
        if (!last) continue;
        float* plane = y + (split ? order.slice0 + slice : 0) * lane::widened(lane::opaque(rows), y_pitch);
        const int row = lane::opaque(blockIdx.y) * COLS + tile * 8;
        store<TILES>(plane, y_pitch, row, rows, order.panel(order.index(unit) + p) * 16, N, sums[p]);
      }
    }
  }
};

}  // namespace stream

template <int WORDS, int BITS, int COLS>
__global__ void __launch_bounds__(32 * stream::MOST_WARPS<WORDS, COLS>, 1)
projection_stream(const signed char* __restrict__ codes /* [K / 16, WORDS, rows, 16] */, const float* __restrict__ scales /* [KB, rows to 16] */,
                  const unsigned char* __restrict__ tiles /* [panels, 8, chunks, panel bytes] */,
                  float* __restrict__ y /* [planes, rows, N] */, int y_pitch, int rows, int N, int KB, int stages, int span, int held, int longest) {
  static_assert((COLS == 1 && WORDS == 1) || (COLS % 8 == 0 && COLS >= 8 && COLS <= 64),
                "projection_stream: a block holds one sequence of one word, or 8 to 64 of them, 8 a fragment");
  using W = lane::WeightPanels<BITS>;
  constexpr int TILES = COLS / 8;
  constexpr bool TOGETHER = stream::TOGETHER<WORDS, COLS>;
  using X = stream::Activations<WORDS, COLS>;
  DYNAMIC_SHARED(unsigned char, memory);
  const int chunks = lane::chunks_of_slice(KB), part = chunks < longest ? chunks : longest, parts = (chunks + part - 1) / part;
  // where not all activations have room, the last warp brings them
  const bool resident = held >= (lane::SLICES + gridDim.z - 1) / gridDim.z * parts;
  const int warp = __shfl_sync(0xFFFFFFFFu, static_cast<int>(lane::opaque(threadIdx.x) / 32), 0), warps = blockDim.x / 32 - !resident;
  const stream::Order<TOGETHER> order(lane::Slices(blockIdx.z, gridDim.z), blockIdx.x, gridDim.x, (N + 15) / 16, warps);
  const bool split = gridDim.z > 1;
  const int room = COLS == 1 || rows > COLS ? COLS : rows, stage_bytes = order.wide() * span * W::BYTES;

  // State and barriers of the block come first, where no register holds their addresses, then the activations, whose places follow
  // from the least: the first of them are waited for.
  const X x{order, memory, room, held, chunks, part, parts, KB, rows, codes, scales};
  unsigned char* free = memory + X::STATE_BYTES + held * X::bytes(room, part) + X::BEHIND;
  const auto take = [&](int bytes) { return free += bytes, free - bytes; };
  const int sums = COLS == 1 ? stream::Row<W, X>::BYTES : split ? 0 : TILES * 512;  // bytes of a panel's
  unsigned char* totals = take(min(order.wide() * warps, order.panels) * sums) + order.index(warp) * sums;
  unsigned char* stage_memory = take(warps * stages * stage_bytes);
  barrier_t* full = reinterpret_cast<barrier_t*>(free);
  stream::Ring<W::BYTES> ring{stage_memory + warp * stages * stage_bytes, full + warp * stages, stages, stage_bytes};
  stream::Feed<W::BYTES, TOGETHER> feed{order, tiles, chunks, span, warp};

  // Stages that are asked for before the activations, which wait behind them: one row needs all but the last. Where products are
  // slow and a warp of its own brings parts, one is enough.
  constexpr bool SLOW = stream::SLOW<WORDS, COLS>;
  const int early = COLS == 1 ? stages - 1 : SLOW && !resident ? 1 : stages;
  const auto fill = [&](int begin, int end) {
#pragma unroll 1
    for (int i = begin; i < end; ++i) ring.fill(feed, i);
  };
  if (warp < warps) {
    ring.init();
    feed.enter();
    if (!feed.more()) lane::admit_next_launch();
    fill(0, early);
  }

  // The first parts are asked for when the launch ahead has ended. Where products are slow, a block that starts only then is what
  // the next launch waits for: it asks before it meets, and for one part where it holds all, as the others would delay that.
  const int brings = order.panels == 0 ? -1 : resident ? warp : warp - warps;
  const bool whole = rows <= COLS, one = SLOW && resident && whole, ahead = whole && brings >= 0 && brings < (one ? 1 : x.fills());
  if (brings == 0) x.init();
  typename X::Part first;
  if (ahead) first = x.prepare(brings, brings);
  if (!SLOW) __syncthreads();
  lane::await_launches_before();
  if (ahead) x.start_copies(first);
  if (COLS == 1 && warp < warps) fill(early, stages);
  if (SLOW) __syncthreads();
  if (warp == warps) {
    lane::admit_next_launch();
    return x.feed(ahead);
  }
  if (SLOW) fill(early, stages);
  if (resident && brings >= 0)
    for (int index = one ? warps - warp : ahead ? warp + warps : warp; index < x.fills(); index += warps) {
      if (one) x.wait({0, 0});
      x.load(index, index);
    }

  typename X::Place place{0, 0};
  const stream::Warp<W, WORDS, COLS> self{order, x, ring, feed, reinterpret_cast<float*>(totals), y, y_pitch, rows, N, split, resident};
  for (int unit = warp; unit < order.units; unit += warps) {
    if (resident) place = {0, 0};
    if constexpr (TOGETHER) {
      if (order.pair(unit)) self.template run<2, TILES>(place, unit, 0);
      else if (order.shared(unit)) self.template run<1, TILES / 4>(place, unit, order.quarter(unit) * (TILES / 4));
      else self.template run<1, TILES>(place, unit, 0);
    } else if constexpr (COLS == 1) {
      stream::run_row<W>(self, place, unit);
    } else {
      self.template run<1, TILES>(place, unit, 0);
    }
  }
  // a band that has no unit for this warp passes it by, so that all buffers are counted free by all warps
  if (!resident && order.panels > 0 && (order.bands() - 1) * warps + warp >= order.units)
    for (int fill = 0; fill < x.fills(); ++fill, x.next(place)) x.wait(place), x.release(place);
}
