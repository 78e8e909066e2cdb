// Causal softmax attention in one order: positions in chunks of 256, each chunk with its own maximum, sum and weighted
// values, chunks combined ascending. What every form of it shares: which positions a query sees, the stream of keys and
// values into shared memory, the exponentials of a chunk.
#pragma once
#include "functions.cuh"
#include "head.cuh"

constexpr int CHUNK = 256;
constexpr int GROUP = 8;  // positions whose scores a warp sums at once
constexpr unsigned INFINITE = 0x7f800000u;

static_assert(CHUNK == 32 * 8, "attention: the chunk sum is one tree of 8 positions a lane");

// What a chunk, or the chunks so far, say of one query: maximum and sum of exponentials; the outputs lie beside it.
struct Summary {
  float top, sum;
};

// how many positions of chunk c a query sees that stands at `position`
__device__ inline int seen_of(int position, int c) {
  const int seen = position + 1 - c * CHUNK;
  return seen < 0 ? 0 : seen > CHUNK ? CHUNK : seen;
}

// A row of the cache in shared memory, in pieces of 16 bytes. Where a lane owns 32 bytes every second run of eight pieces
// has its pairs exchanged, so that eight lanes that read their first pieces meet eight different groups of banks.
template <int D, typename KV>
struct Row {
  static constexpr int PIECE = 16 / static_cast<int>(sizeof(KV)), PIECES = D / PIECE;
  static constexpr bool WIDE = D / 32 * sizeof(KV) == 32;

  __device__ static int place(int piece) { return WIDE ? piece ^ (piece >> 3 & 1) : piece; }
  __device__ static int at(int element) { return place(element / PIECE) * PIECE + element % PIECE; }
};

// the elements of a staged row that lane l owns
template <int D, typename KV, int PER>
__device__ inline void load_staged(float (&x)[PER], const KV* row, int l) {
  if constexpr (Row<D, KV>::WIDE) {
    float low[PER / 2], high[PER / 2];
    lane::load_owned(low, row + Row<D, KV>::at(l * PER));
    lane::load_owned(high, row + Row<D, KV>::at(l * PER + PER / 2));
#pragma unroll
    for (int i = 0; i < PER / 2; ++i) x[i] = low[i], x[i + PER / 2] = high[i];
  } else {
    lane::load_owned(x, row + l * PER);
  }
}

// Keys, then values, of the chunks that a block of so many WARPS walks, in tiles of ROWS rows through a ring of STAGES in
// shared memory. OWN: every warp has a ring of its own, for the 8 keys of a tile that it scores and the dims of all values
// that it weighs, and waits for no other warp.
template <int D, typename KV, int ROWS, int STAGES, int WARPS, bool OWN = false>
struct Stream {
  static constexpr int SLICE = D / WARPS, TILE = OWN ? ROWS * SLICE : ROWS * D;
  static_assert(!OWN || ROWS == GROUP * WARPS, "attention: a warp with a ring of its own scores 8 keys of a tile");

  KV* ring;                 // [STAGES, TILE]
  const KV *keys, *values;  // position 0 of the sequence's head
  int last, chunk, stride;  // the last position that any query sees; chunks chunk, chunk + stride, ...
  int row, issue_stage, take_stage;  // 0
  bool of_values;                    // false

  __device__ void start() {
    for (int i = 0; i < STAGES - 1; ++i) issue();
  }

  // begins to copy the next tile, if there is one
  __device__ void issue() {
    const int most = seen_of(last, chunk);
    if (row < most) {
      const KV* const from = of_values ? values : keys;
      copy(ring + issue_stage * TILE, from + (static_cast<long long>(chunk) * CHUNK + row) * D, most - row);
      row += ROWS;
      if (row >= most) chunk += of_values ? stride : 0, of_values = !of_values, row = 0;
    }
    lane::cp_async_commit();
    issue_stage = issue_stage + 1 < STAGES ? issue_stage + 1 : 0;
  }

  __device__ void copy(KV* to, const KV* from, int rows) const {
    const int w = threadIdx.x / 32, l = threadIdx.x % 32;
    if constexpr (!OWN) copy_rows<ROWS, D, WARPS>(to, from, rows, threadIdx.x);
    else if (of_values) copy_rows<ROWS, SLICE, 1>(to, from + w * SLICE, rows, l);
    else copy_rows<GROUP, D, 1>(to, from + w * GROUP * D, rows - w * GROUP, l);
  }

  // up to COUNT rows of WIDTH elements by so many warps; a thread's piece of a row stays the same
  template <int COUNT, int WIDTH, int BY>
  __device__ static void copy_rows(KV* to, const KV* from, int rows, int thread) {
    constexpr int PIECE = Row<D, KV>::PIECE, PIECES = WIDTH / PIECE, LANES = PIECES < 32 ? PIECES : 32, PASS = BY * 32 / LANES;
    const int mine = thread / LANES, piece = thread % LANES;
    to += mine * WIDTH + (WIDTH == D ? Row<D, KV>::place(piece) : piece) * PIECE, from += mine * D + piece * PIECE;
    if (rows >= COUNT && COUNT % PASS == 0) {
#pragma unroll
      for (int r = 0; r < COUNT; r += PASS) copy_row<PIECES, LANES>(to + r * WIDTH, from + r * D);
    } else {
#pragma unroll 1
      for (int r = mine; r < (rows < COUNT ? rows : COUNT); r += PASS, to += PASS * WIDTH, from += PASS * D)
        copy_row<PIECES, LANES>(to, from);
    }
  }

  template <int PIECES, int LANES>
  __device__ static void copy_row(KV* to, const KV* from) {
    constexpr int PIECE = Row<D, KV>::PIECE;
#pragma unroll
    for (int k = 0; k < PIECES; k += LANES) lane::cp_async16(to + k * PIECE, from + k * PIECE);
  }

  // the next tile, whole and seen by all who read it; they have done with the one before
  __device__ const KV* take() {
    lane::cp_async_wait<STAGES - 2>();
    if constexpr (OWN) __syncwarp();
    else __syncthreads();
    issue();
    const KV* const tile = ring + take_stage * TILE;
    take_stage = take_stage + 1 < STAGES ? take_stage + 1 : 0;
    return tile;
  }
};

// A warp turns the scores of one query into exponentials. A score that is not finite makes the summary NaN, and with it
// the output.
__device__ inline Summary exponentiate(float* e, int seen) {
  const int l = threadIdx.x % 32;
  float x[8];
  lane::load_owned(x, e + l * 8);
  float top = -lane::from_bits(INFINITE);
  bool finite = true;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const bool is_seen = l * 8 + i < seen;
    finite = finite && (!is_seen || lane::is_finite(x[i]));
    top = is_seen && x[i] > top ? x[i] : top;
  }
  top = lane::warp_max_nan(finite ? top : lane::from_bits(lane::QUIET_NAN));
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < 8; ++i)
    if (l * 8 + i < seen) x[i] = lane::exp(x[i] - top), sum = sum + x[i];
  sum = lane::warp_sum(sum);
#pragma unroll
  for (int i = 0; i < 8; i += 4) *reinterpret_cast<float4*>(e + l * 8 + i) = make_float4(x[i], x[i + 1], x[i + 2], x[i + 3]);
  return {top, sum};
}

// The chunks so far take one more: both sides are rescaled to the larger maximum.
struct Rescale {
  float all, chunk;
};

__device__ inline Rescale take_chunk(Summary& all, Summary chunk) {
  const float top = lane::maximum(all.top, chunk.top);
  const Rescale by = {lane::exp(all.top - top), lane::exp(chunk.top - top)};
  all = {top, fmaf(all.sum, by.all, chunk.sum * by.chunk)};
  return by;
}

__device__ inline float rescaled(float total, float part, Rescale by) { return fmaf(total, by.all, part * by.chunk); }
