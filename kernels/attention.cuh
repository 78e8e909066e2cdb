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

// waits for the warps that share a stream: those of the block, or TEAMED those of one of its teams
template <int WARPS, bool TEAMED>
__device__ inline void meet_team() {
  if constexpr (TEAMED) lane::named_barrier(1 + threadIdx.x / (32 * WARPS), 32 * WARPS);
  else __syncthreads();
}

// Keys, then values, of the chunks that so many WARPS walk, in tiles of ROWS rows through a ring of STAGES in shared memory.
// OWN: every warp has a ring of its own, for the 8 keys of a tile that it scores and the dims of all values that it weighs,
// and waits for no other warp.
template <int D, typename KV, int ROWS, int STAGES, int WARPS, bool OWN = false, bool TEAMED = false>
struct Stream {
  static constexpr int SLICE = D / WARPS, TILE = OWN ? ROWS * SLICE : ROWS * D;
  static_assert(!OWN || ROWS == GROUP * WARPS, "attention: a warp with a ring of its own scores 8 keys of a tile");

  KV* ring;                 // [STAGES, TILE]
  const KV *keys, *values;  // position 0 of the sequence's head
  int last, chunk, stride;  // the last position that any query sees; chunks chunk, chunk + stride, ...
  const KV* from;           // what this thread copies first of the next tile
  int left;                 // rows from there to the end of the chunk; none behind the last chunk
  int issue_stage, take_stage;
  int thread;               // of those that share the stream
  bool of_values;

  __device__ Stream(KV* ring, const KV* keys, const KV* values, int last, int chunk, int stride)
      : ring(ring), keys(keys), values(values), last(last), chunk(chunk), stride(stride), issue_stage(0), take_stage(0),
        thread(TEAMED ? threadIdx.x % (32 * WARPS) : threadIdx.x) {
    turn(false);
#pragma unroll 1
    for (int i = 0; i < STAGES - 1; ++i) issue();
  }

  // to the keys of a chunk, or to its values
  __device__ void turn(bool to_values) {
    of_values = to_values;
    left = seen_of(last, chunk);
    from = (of_values ? values : keys) + static_cast<long long>(chunk) * CHUNK * D + mine();
  }

  // begins to copy the next tile, if there is one
  __device__ void issue() {
    if (left > 0) {
      copy(ring + issue_stage * TILE);
      from += ROWS * D, left -= ROWS;
      if (left <= 0) {
        if (of_values) chunk += stride;
        turn(!of_values);
      }
    }
    lane::cp_async_commit();
    issue_stage = issue_stage + 1 < STAGES ? issue_stage + 1 : 0;
  }

  // Pieces of 16 bytes that a run of lanes copies of a row, and the rows that are copied at once. A thread's piece of a row
  // stays the same.
  static constexpr int PIECE = Row<D, KV>::PIECE;
  template <int WIDTH>
  static constexpr int LANES = WIDTH / PIECE < 32 ? WIDTH / PIECE : 32;
  template <int WIDTH>
  static constexpr int PASS = (OWN ? 1 : WARPS) * 32 / LANES<WIDTH>;

  __device__ int mine() const {
    const int w = thread / 32, l = thread % 32;
    if constexpr (!OWN) return thread / LANES<D> * D + thread % LANES<D> * PIECE;
    else if (of_values) return w * SLICE + l / LANES<SLICE> * D + l % LANES<SLICE> * PIECE;
    else return w * GROUP * D + l % LANES<D> * PIECE;
  }

  __device__ void copy(KV* to) const {
    if constexpr (!OWN) copy_rows<ROWS, D>(to, left, thread);
    else if (of_values) copy_rows<ROWS, SLICE>(to, left, thread % 32);
    else copy_rows<GROUP, D>(to, left - thread / 32 * GROUP, thread % 32);
  }

  // up to COUNT rows of WIDTH elements
  template <int COUNT, int WIDTH>
  __device__ void copy_rows(KV* to, int rows, int by) const {
    constexpr int BY = LANES<WIDTH>, EACH = PASS<WIDTH>, BYTES = sizeof(KV);
    const int row = by / BY, piece = by % BY;
    to += row * WIDTH + (WIDTH == D ? Row<D, KV>::place(piece) : piece) * PIECE;
#pragma unroll
    for (int k = 0; k < WIDTH / PIECE; k += BY) {
      if (rows >= COUNT) {
        lane::cp_async16_run<COUNT / EACH, EACH * WIDTH * BYTES, EACH * D * BYTES>(to + k * PIECE, from + k * PIECE);
        constexpr int WHOLE = COUNT / EACH * EACH;
        if (row < COUNT - WHOLE) lane::cp_async16(to + WHOLE * WIDTH + k * PIECE, from + WHOLE * D + k * PIECE);
      } else {
#pragma unroll 1
        for (int r = 0; row + r < (rows < COUNT ? rows : COUNT); r += EACH)
          lane::cp_async16(to + r * WIDTH + k * PIECE, from + r * D + k * PIECE);
      }
    }
  }

  // the next tile, whole and seen by all who read it; they have done with the one before
  __device__ const KV* take() {
    lane::cp_async_wait<STAGES - 2>();
    if constexpr (OWN) __syncwarp();
    else meet_team<WARPS, TEAMED>();
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
  // no branch an element: eight exponentials take little longer than one. Those that are not seen add nothing.
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float weight = lane::exp(x[i] - top);
    x[i] = l * 8 + i < seen ? weight : 0.0f;
    sum = sum + x[i];
  }
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
