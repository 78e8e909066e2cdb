// Streaming projection: the weights of a decode step go once through shared memory, at the speed of the memory.
//
// Every warp streams its own units, chunk by chunk, through its own ring of bulk copies with one barrier a stage; no barrier
// of the block stands in the stream. Slice sums are added in order in shared memory, by turns. With the slices split over
// blockIdx.z there are no turns: every slice sum is stored to its plane.
//
// A launch fills its rings before it waits for the one ahead of it: weights depend on nothing. It admits the next one when
// it has asked for its last weights, so that the memory is never without a request: earlier, and the rings of the next launch
// would be full before this one ends, and nothing left to ask for in between.
#include "projection_tile.cuh"
#include "stream_activations.cuh"
#include "stream_ring.cuh"

namespace stream {

constexpr int MOST_WIDTH = 32;  // units of a band

// Chunks of a part: the longer, the fewer copies and waits.
constexpr int PART = 6;

// Where the products of a block of weights with all sequences take longer than its bytes, two panels share what is read of
// the activations; a thread then has twice the sums, and there are registers for fewer warps.
template <int WORDS, int COLS>
constexpr int PANELS_OF_UNIT = WORDS * COLS < 64 ? 1 : 2;
template <int WORDS, int COLS>
constexpr int MOST_WARPS = WORDS * COLS < 32 ? 20 : WORDS * COLS == 32 ? 16 : 12;

__device__ inline void load_scales(float (&xs)[4], const unsigned char* p) {
  const uint4 v = lane::load16(p);
  xs[0] = lane::from_bits(v.x), xs[1] = lane::from_bits(v.y), xs[2] = lane::from_bits(v.z), xs[3] = lane::from_bits(v.w);
}
__device__ inline void load_scales(float (&xs)[2], const unsigned char* p) {
  const uint2 v = lane::load8(p);
  xs[0] = lane::from_bits(v.x), xs[1] = lane::from_bits(v.y);
}

// What a warp holds of one tile of 8 columns: COUNT blocks of codes, and the scales of columns 2t and 2t + 1.
template <int WORDS, int COUNT>
struct Columns {
  unsigned codes[WORDS][COUNT / 2][4];
  float scales[2][COUNT];

  // blocks from `first` of a chunk on
  template <class X>
  __device__ void load(const X& x, const typename X::View& at, int tile, int first) {
    load_scales(scales[0], x.memory + at.scales + tile * 8 * X::SCALE_PITCH + first * 4);
    load_scales(scales[1], x.memory + at.scales + (tile * 8 + 1) * X::SCALE_PITCH + first * 4);
#pragma unroll
    for (int word = 0; word < WORDS; ++word)
#pragma unroll
      for (int b = 0; b < COUNT; b += 2)
        lane::ldmatrix_x4(codes[word][b / 2],
                          x.memory + at.codes + 2 * (first + b) * at.pitch + word * x.room * 16 + tile * 128);
  }
};

// acc += COUNT blocks of a chunk from `first` on, of PANELS panels with weights w and scales s, tile by tile. Additions that
// share operands stand together: a register file gives two operands a cycle, and an addition has three.
template <int WORDS, int TILES, int PANELS, int COUNT, class X>
__device__ inline void multiply(float (&acc)[PANELS * TILES][4], const unsigned (&w)[PANELS][COUNT][4],
                                const lane::WeightScale (&s)[PANELS][COUNT][2], const X& x, const typename X::View& at, int first) {
  // the compiler would else load many tiles ahead, and have no registers left for them
  constexpr bool ONE_AHEAD = TILES * WORDS >= 8;
  Columns<WORDS, COUNT> columns[2];
  columns[0].load(x, at, 0, first);
#pragma unroll
  for (int j = 0; j < TILES; ++j) {
    if (j + 1 < TILES) columns[(j + 1) % 2].load(x, at, j + 1, first);
    if (ONE_AHEAD) __syncwarp();
    const auto& column = columns[j % 2];
#pragma unroll
    for (int b = 0; b < COUNT; ++b) {
      float t[PANELS][4];
#pragma unroll
      for (int p = 0; p < PANELS; ++p) {
        int d[WORDS][4];
#pragma unroll
        for (int word = 0; word < WORDS; ++word) {
          const unsigned pair[2] = {column.codes[word][b / 2][b % 2 * 2], column.codes[word][b / 2][b % 2 * 2 + 1]};
          lane::mma_s8(d[word], w[p][b], pair, lane::MAGIC);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) t[p][i] = lane::scaled_product<WORDS, true>(d, i, s[p][b]);
      }
#pragma unroll
      for (int side = 0; side < 2; ++side)
#pragma unroll
        for (int p = 0; p < PANELS; ++p)
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            float& a = acc[p * TILES + j][2 * half + side];
            a = fmaf(t[p][2 * half + side], column.scales[side][b], a);
          }
    }
  }
}

// acc += the chunk at `stage`, panels `apart` bytes apart; once it is read into registers, release() is called
template <class W, int WORDS, int TILES, int PANELS, class X, class RELEASE>
__device__ inline void multiply_chunk(float (&acc)[PANELS * TILES][4], const unsigned char* stage, int apart, const X& x,
                                      const typename X::View& at, RELEASE release) {
  // blocks of weights in registers at a time, and whether the compiler may mix their products: what it finds registers for
  // beside the sums
  constexpr int COUNT = TILES * WORDS <= 2 ? 4 : 2, UNROLL = TILES * WORDS >= 8 ? 1 : W::BLOCKS / COUNT;
#pragma unroll UNROLL
  for (int first = 0; first < W::BLOCKS; first += COUNT) {
    unsigned w[PANELS][COUNT][4];
    lane::WeightScale s[PANELS][COUNT][2];
#pragma unroll
    for (int p = 0; p < PANELS; ++p) {
      W::template row_fragments<COUNT>(w[p], stage + p * apart, first);
      W::template row_scales<COUNT>(s[p], stage + p * apart, first);
    }
    if (first + COUNT == W::BLOCKS) release();
    multiply<WORDS, TILES, PANELS, COUNT>(acc, w, s, x, at, first);
  }
}

// Sums of a panel of rows from n on; columns 2t and 2t + 1 of every tile from `row` on. A plane is 0 + its slice's sum, as
// whoever adds the planes finds it.
template <int TILES>
__device__ inline void store(float* y, int y_pitch, int row, int rows, int n, int N, const float (*sums)[4], bool plane) {
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
          if (n + 8 * half < N) at[8 * half] = plane ? 0.0f + sums[j][2 * half + side] : sums[j][2 * half + side];
      at += side ? 7LL * y_pitch : y_pitch;
    }
}

}  // namespace stream

template <int WORDS, int BITS, int COLS>
__global__ void __launch_bounds__(32 * stream::MOST_WARPS<WORDS, COLS>, 1)
projection_stream(const signed char* __restrict__ codes /* [K / 16, WORDS, rows, 16] */, const float* __restrict__ scales /* [rows, KB] */,
                  const unsigned char* __restrict__ tiles /* [panels, 8, chunks, panel bytes] */,
                  float* __restrict__ y /* [planes, rows, N] */, int y_pitch, int rows, int N, int KB, int stages, int span, int width,
                  int held) {
  static_assert(COLS % 8 == 0 && COLS >= 8 && COLS <= 64, "projection_stream: a block holds 8 to 64 sequences, 8 a fragment");
  using W = lane::WeightPanels<BITS>;
  constexpr int TILES = COLS / 8, PART = stream::PART;
  constexpr int PANELS = stream::PANELS_OF_UNIT<WORDS, COLS>, SUMS = PANELS * TILES;
  using X = stream::Activations<WORDS, COLS, PART, PANELS>;
  DYNAMIC_SHARED(unsigned char, memory);
  const int warp = __shfl_sync(0xFFFFFFFFu, static_cast<int>(lane::opaque(threadIdx.x) / 32), 0), warps = blockDim.x / 32;
  const int chunks = lane::chunks_of_slice(KB);
  const stream::Order<PANELS> order(lane::Slices(blockIdx.z, gridDim.z), blockIdx.x, gridDim.x, (N + 15) / 16, width);
  const bool split = order.slices < lane::SLICES;  // between blocks: every slice goes to its plane
  const int room = rows < COLS ? rows : COLS;

  // flags and barriers of the block come first, where no register holds their addresses
  unsigned char* free = memory + X::STATE_BYTES + stream::MOST_WIDTH * 4;
  const auto take = [&](int bytes) { return free += bytes, free - bytes; };
  const stream::Turns<SUMS> turns{reinterpret_cast<float*>(take(split ? 0 : width * SUMS * 512)),
                                  reinterpret_cast<unsigned*>(memory + X::STATE_BYTES), split ? 0 : width};
  unsigned char* stage_memory = take(warps * stages * PANELS * span * W::BYTES);
  const int start = static_cast<int>(take(held * X::bytes(room)) - memory);
  barrier_t* full = reinterpret_cast<barrier_t*>(free);
  const X x{order, memory, start, room, held, chunks, KB, rows, codes, scales};
  stream::Ring<W::BYTES, PANELS> ring{stage_memory + warp * stages * PANELS * span * W::BYTES, full + warp * stages, stages, span};
  stream::Feed<PANELS> feed{order, tiles, W::BYTES, chunks, span, warps, order.at(warp)};

  ring.init();
  feed.enter();
  if (!feed.more()) lane::admit_next_launch();
#pragma unroll 1
  for (int i = 0; i < stages; ++i) ring.fill(feed);
  turns.init();
  x.init();
  __syncthreads();
  lane::await_launches_before();
  if (order.panels > 0)
    for (int fill = warp; fill < held && fill < x.fills(); fill += warps) x.load(fill);

  for (stream::Unit unit = order.at(warp); order.holds(unit); order.advance(unit, warps)) {
    float sums[SUMS][4] = {};
    const int apart = order.count(unit) == PANELS ? span * W::BYTES : 0;  // a unit that lacks a panel multiplies its first again
    typename X::Place place = x.first(unit);
    for (int left = chunks; left > 0; x.next(place)) {
      x.wait(place);
      typename X::View view = x.view(place);
      do {
        const unsigned char* stage = ring.wait();
        const int rest = left > span ? left - span : 0;
        for (; left > rest; view.next(), stage += W::BYTES) {
          // the stage is read once its last chunk is in registers
          const auto release = [&] {
            if (--left == rest) ring.refill(feed);
          };
          stream::multiply_chunk<W, WORDS, TILES, PANELS>(sums, stage, apart, x, view, release);
        }
      } while (left > 0 && (chunks - left) % PART != 0);
      x.finish(place, unit);
    }
    const int slice = order.slice0 + unit.slice;
    if (!split) turns.take(sums, unit);
    if (split || slice == lane::SLICES - 1)
#pragma unroll
      for (int p = 0; p < PANELS; ++p)  // one that the unit lacks lies past N
        stream::store<TILES>(y + static_cast<long long>(split ? slice : 0) * rows * y_pitch, y_pitch, blockIdx.y * COLS, rows,
                             (order.panel(unit) + p * order.stride) * 16, N, sums + p * TILES, split);
    if (!split) turns.give(sums, unit);
  }
}
