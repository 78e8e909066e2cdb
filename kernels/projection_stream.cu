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

// Chunks of a part: the longer, the fewer copies and waits.
constexpr int PART = 6;

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
    load_scales(scales[1], x.memory + at.scales + at.odd + tile * 8 * X::SCALE_PITCH + first * 4);
#pragma unroll
    for (int word = 0; word < WORDS; ++word)
#pragma unroll
      for (int b = 0; b < COUNT; b += 2)
        lane::ldmatrix_x4(codes[word][b / 2],
                          x.memory + at.codes + (word * x.room + tile * 8) * X::CODE_PITCH + (first + b) * lane::QUANTUM);
  }
};

// acc += COUNT blocks of a chunk from `first` on, weights w with scales s, tile by tile
template <int WORDS, int TILES, int COUNT, class X>
__device__ inline void multiply(float (&acc)[TILES][4], const unsigned (&w)[COUNT][4], const lane::WeightScale (&s)[COUNT][2],
                                const X& x, const typename X::View& at, int first) {
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
      int d[WORDS][4];
#pragma unroll
      for (int word = 0; word < WORDS; ++word) {
        const unsigned pair[2] = {column.codes[word][b / 2][b % 2 * 2], column.codes[word][b / 2][b % 2 * 2 + 1]};
        lane::mma_s8(d[word], w[b], pair, lane::MAGIC);
      }
      const float xs[2] = {column.scales[0][b], column.scales[1][b]};
      lane::add_products<WORDS, true>(acc[j], d, s[b], xs);
    }
  }
}

// acc += the chunk at `stage`; once it is read into registers, release() is called
template <class W, int WORDS, int COUNT, int TILES, class X, class RELEASE>
__device__ inline void multiply_chunk(float (&acc)[TILES][4], const unsigned char* stage, const X& x, const typename X::View& at,
                                      RELEASE release) {
  // for 64 sequences of two words the compiler would else mix both halves, and have no registers left for it
  constexpr int UNROLL = TILES >= 8 ? 1 : W::BLOCKS / COUNT;
#pragma unroll UNROLL
  for (int first = 0; first < W::BLOCKS; first += COUNT) {
    unsigned w[COUNT][4];
    lane::WeightScale s[COUNT][2];
    W::template row_fragments<COUNT>(w, stage, first);
    W::template row_scales<COUNT>(s, stage, first);
    if (first + COUNT == W::BLOCKS) release();
    multiply<WORDS>(acc, w, s, x, at, first);
  }
}

// Sums of a panel of rows from n on; columns 2t and 2t + 1 of every tile from `row` on. A plane is 0 + its slice's sum, as
// whoever adds the planes finds it.
template <int TILES>
__device__ inline void store(float* y, int y_pitch, int row, int rows, int n, int N, const float (&sums)[TILES][4], bool plane) {
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

// for 64 sequences a thread needs more registers than 20 warps leave it
template <int WORDS, int BITS, int COLS>
__global__ void __launch_bounds__(COLS <= 32 ? 640 : 512, 1)
projection_stream(const signed char* __restrict__ codes /* [rows, WORDS, K] */, const float* __restrict__ scales /* [rows, KB] */,
                  const unsigned char* __restrict__ tiles /* [panels, 8, chunks, panel bytes] */,
                  float* __restrict__ y /* [planes, rows, N] */, int y_pitch, int rows, int N, int KB, int stages, int span, int width,
                  int held) {
  static_assert(COLS % 8 == 0 && COLS >= 8 && COLS <= 64, "projection_stream: a block holds 8 to 64 sequences, 8 a fragment");
  using W = lane::WeightPanels<BITS>;
  constexpr int TILES = COLS / 8, PART = stream::PART;
  using X = stream::Activations<WORDS, COLS, PART>;
  // blocks of weights in registers at a time: what every compiler finds registers for beside the sums (4 for 64 sequences spill
  // two of them with NVRTC 13.0)
  constexpr int COUNT = TILES * WORDS <= 2 ? 4 : 2;
  DYNAMIC_SHARED(unsigned char, memory);
  const int warp = __shfl_sync(0xFFFFFFFFu, static_cast<int>(lane::opaque(threadIdx.x) / 32), 0), warps = blockDim.x / 32;
  const int chunks = lane::chunks_of_slice(KB), first = blockIdx.y * COLS;
  const stream::Order order(lane::Slices(blockIdx.z, gridDim.z), blockIdx.x, gridDim.x, (N + 15) / 16, width);
  const bool split = order.slices < lane::SLICES;  // between blocks: every slice goes to its plane
  const int room = COLS == 8 && rows < 8 ? rows : COLS;

  unsigned char* free = memory;
  const auto take = [&](int bytes) { return free += bytes, free - bytes; };
  unsigned char* stage_memory = take(warps * stages * span * W::BYTES);
  float* totals = reinterpret_cast<float*>(take(split ? 0 : width * TILES * 512));
  unsigned char* parts = take(held * room * X::ROW_BYTES);
  barrier_t* full = reinterpret_cast<barrier_t*>(take((warps * stages + held) * 8));
  unsigned* fills = reinterpret_cast<unsigned*>(take(held * 8));
  const stream::Turns<TILES> turns{totals, reinterpret_cast<unsigned*>(free), split ? 0 : width};
  const X x{order, memory, static_cast<int>(parts - memory), full + warps * stages, fills, fills + held, room, held, chunks, KB, rows, codes, scales};
  stream::Ring<W::BYTES> ring{stage_memory + warp * stages * span * W::BYTES, full + warp * stages, stages, span};
  stream::Feed feed{order, tiles, W::BYTES, chunks, span, warps, order.at(warp)};

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
    float sums[TILES][4] = {};
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
          stream::multiply_chunk<W, WORDS, COUNT>(sums, stage, x, view, release);
        }
      } while (left > 0 && (chunks - left) % PART != 0);
      x.finish(place, unit);
    }
    const int slice = order.slice0 + unit.slice;
    if (!split) turns.take(sums, unit);
    if (split || slice == lane::SLICES - 1)
      stream::store(y + static_cast<long long>(split ? slice : 0) * rows * y_pitch, y_pitch, first, rows, order.panel(unit) * 16, N,
                    sums, split);
    if (!split) turns.give(sums, unit);
  }
}
