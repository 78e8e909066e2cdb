// The one order of every projection: what all lowerings share, so that none of them can choose another.
//
// total = 0; for each of 8 slices of K ascending { acc = 0; for its blocks of 32 ascending
//     acc = fma(float(dot) * ws, xs, acc);  total = total + acc }          dot: the exact integer of a block
// A row of activation codes is [WORDS][K] int8 (WORDS 1: A8; WORDS 2: A15, hi then lo), its scales are [K / 32] float32.
// Weights are [N][K] int8 with [N][K / 32] float16 scales, and y is [rows][N] float32.
#pragma once
#include "device.cuh"

namespace lane {

constexpr int QUANTUM = 32;  // elements of K that share a scale: a block
constexpr int SLICES = 8;

// Integer units add dots onto MAGIC, whose bits are the float SHIFT = 3 * 2^22: with |dot| < 2^22 the sum is the bits of
// the float SHIFT + dot, so that fma(that, ws, -SHIFT * ws) is float(dot) * ws rounded once and no conversion is needed.
constexpr int MAGIC = 0x4B400000;
constexpr float SHIFT = 12582912.0f;

// one weight scale and what takes SHIFT away again (exact: a float16 times 3 * 2^22)
struct WeightScale {
  float ws, away;
};

__device__ inline WeightScale weight_scale(float ws) { return {ws, -SHIFT * ws}; }
__device__ inline WeightScale weight_scale(half_t stored) { return weight_scale(to_float(stored)); }

// a row has at most 2^19 blocks, so that 32 bits hold the product
__device__ inline int slice_begin(int slice, int blocks) { return slice * blocks / SLICES; }

// chunks of 4 blocks that the longest slice has
__device__ inline int chunks_of_slice(int blocks) { return ((blocks + SLICES - 1) / SLICES + 3) / 4; }

// float(dot) * ws rounded once; dot[] is on MAGIC. A15: 128 * hi - SHIFT is exact, and the sum with lo rounds the dot once.
template <int WORDS>
__device__ inline float scaled(const int (&dot)[WORDS], WeightScale s) {
  static_assert(WORDS == 1 || WORDS == 2, "activation codes are one int8 word (A8) or two (A15)");
  const float first = from_bits(static_cast<unsigned>(dot[0]));
  if constexpr (WORDS == 1) return fmaf(first, s.ws, s.away);
  else return (fmaf(first, 128.0f, -129.0f * SHIFT) + from_bits(static_cast<unsigned>(dot[1]))) * s.ws;
}

// 32 neighbouring codes, as two 16-byte loads
struct Codes32 {
  uint4 low, high;
  __device__ void load(const signed char* p) { low = load16(p), high = load16(p + 16); }
};

__device__ inline int dot16(const uint4& a, const uint4& b, int d) {
  d = dp4a(static_cast<int>(a.x), static_cast<int>(b.x), d);
  d = dp4a(static_cast<int>(a.y), static_cast<int>(b.y), d);
  d = dp4a(static_cast<int>(a.z), static_cast<int>(b.z), d);
  return dp4a(static_cast<int>(a.w), static_cast<int>(b.w), d);
}

__device__ inline int dot32(const Codes32& a, const Codes32& b) {
  return dot16(a.high, b.high, dot16(a.low, b.low, MAGIC));
}

// The dots of one block with a row of activation codes; its words lie `stride` bytes apart.
template <int WORDS>
__device__ inline void dots32(int (&dot)[WORDS], const Codes32& w, const signed char* x, int stride) {
#pragma unroll
  for (int word = 0; word < WORDS; ++word) {
    Codes32 code;
    code.load(x + word * stride);
    dot[word] = dot32(w, code);
  }
}

// An even share of the slices for each of `splits` blocks. With one split a block stores the total, else every slice
// goes to its own plane, so that whoever adds the planes ascending has the same bits for any split.
struct Slices {
  int first, last;
  __device__ Slices(int split, int splits) : first(split * SLICES / splits), last((split + 1) * SLICES / splits) {}
};

// A walk over the blocks of slices first .. last - 1, at most BLOCKS at a time. No chunk crosses a slice, so that a sum
// is closed only at the end of a chunk. Empty slices (K below 256) add nothing and are passed over.
template <int BLOCKS>
struct Walk {
  int blocks, slice, last, block = 0, end = 0;

  __device__ Walk(Slices share, int blocks_of_row) : blocks(blocks_of_row), slice(share.first), last(share.last) {
    enter();
  }
  __device__ bool done() const { return slice >= last; }
  __device__ int count() const { return end - block < BLOCKS ? end - block : BLOCKS; }
  __device__ bool closes() const { return block + BLOCKS >= end; }
  __device__ int chunk() const { return (block - slice_begin(slice, blocks)) / BLOCKS; }
  __device__ void next() {
    block += BLOCKS;
    if (block >= end) ++slice, enter();
  }

 private:
  __device__ void enter() {
    for (; slice < last; ++slice) {
      block = slice_begin(slice, blocks), end = slice_begin(slice + 1, blocks);
      if (block < end) return;
    }
  }
};

// The end of a slice: its sums join the totals of a thread, and new ones begin.
template <int A, int B>
__device__ inline void close_slice(float (&acc)[A][B], float (&total)[A][B]) {
#pragma unroll
  for (int a = 0; a < A; ++a)
#pragma unroll
    for (int b = 0; b < B; ++b) total[a][b] = total[a][b] + acc[a][b], acc[a][b] = 0.0f;
}

// where one output, or its share of a split sum, is stored: planes lie rows * pitch apart
__device__ inline float* output(float* y, int plane, int rows, int row, int pitch, int n) {
  return y + (static_cast<long long>(plane) * rows + row) * pitch + n;
}

}  // namespace lane
