// Tensor-core tiles of a projection: fragments of m16n8k32, the ring of stages they are read from, and its copies.
//
// Lane t of a group of four owns elements 8t .. 8t + 7 of a block of 32, in both operands: one permutation of K, which an
// exact integer dot does not see. A fragment row is then one 8-byte load, and of packed Q4 codes one of 4 bytes.
#pragma once
#include "projection.cuh"

namespace lane {

constexpr int SHARED_BUDGET = 227 * 1024;  // bytes of shared memory that any block can have on any architecture

// acc += the products of one block, d on MAGIC: the rows of the fragment are weights, or its columns are
template <int WORDS, bool WEIGHTS_IN_ROWS>
__device__ inline void add_products(float (&acc)[4], const int (&d)[WORDS][4], const WeightScale (&s)[2], const float (&xs)[2]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    int dot[WORDS];
#pragma unroll
    for (int word = 0; word < WORDS; ++word) dot[word] = d[word][i];
    acc[i] = fmaf(scaled(dot, s[WEIGHTS_IN_ROWS ? i / 2 : i % 2]), xs[WEIGHTS_IN_ROWS ? i % 2 : i / 2], acc[i]);
  }
}

// Where unit `unit` of a row lies: rows that one load of a warp meets, WAYS at a time, must lie in different banks.
// The mask follows from the units a row has: a wider one would lead out of the row.
template <int UNITS, int WAYS>
__device__ inline int swizzled(int unit, int row) {
  static_assert((UNITS & (UNITS - 1)) == 0, "swizzle: a row holds a power of two of units, or XOR would leave the row");
  constexpr int ROWS_OF_LINE = UNITS < WAYS ? WAYS / UNITS : 1, MASK = (UNITS < WAYS ? UNITS : WAYS) - 1;
  return unit ^ (row / ROWS_OF_LINE & MASK);
}

// Eight codes -8 .. 7 from eight nibbles biased by 8, in the order of K. Bit 7 of each byte is lent before the
// subtraction and taken back after it, so that no byte borrows from its neighbour.
__device__ inline uint2 expand_nibbles(unsigned packed) {
  const unsigned even = (((packed & 0x0F0F0F0Fu) | 0x80808080u) - 0x08080808u) ^ 0x80808080u;
  const unsigned odd = (((packed >> 4 & 0x0F0F0F0Fu) | 0x80808080u) - 0x08080808u) ^ 0x80808080u;
  return {__byte_perm(even, odd, 0x5140), __byte_perm(even, odd, 0x7362)};
}

__device__ inline unsigned load_word(const unsigned char* p) { return *reinterpret_cast<const unsigned*>(p); }

// Weights as rows: codes of BITS bits [N][K], float16 scales [N][KB]. A panel is 16 rows of a chunk in shared memory:
// swizzled codes, then scales as [row % 8][row / 8][block].
template <int BITS, int CHUNK>
struct WeightRows {
  static constexpr int BLOCKS = CHUNK / QUANTUM, UNIT = 4 * BITS, CODES = 16 * BLOCKS * UNIT, BYTES = CODES + 32 * BLOCKS;
  static constexpr int WAYS = BITS == 8 ? 4 : 8;
  static_assert(CHUNK > 0 && CHUNK % QUANTUM == 0,
                "a K step is whole blocks of 32; what lies past the last one would be staged and never multiplied");
  static_assert(BITS == 8 || BITS == 4, "weight codes have 8 bits (Q8_0) or 4 (Q4)");

  const unsigned char* codes;
  const half_t* scales;
  int N, KB;

  // by one warp
  template <class WALK>
  __device__ void copy(unsigned char* panel, int index, const WALK& at) const {
    constexpr int PIECES = BLOCKS * UNIT / 16;  // of a row, 16 bytes each
    const int count = at.count();
#pragma unroll
    for (int i = threadIdx.x % 32; i < 16 * PIECES; i += 32) {
      const int r = i / PIECES, unit = i % PIECES * 16 / UNIT, within = i % PIECES * 16 % UNIT;
      const long long row = index * 16 + r < N ? index * 16 + r : N - 1;
      if (unit < count)
        cp_async16(panel + (r * BLOCKS + swizzled<BLOCKS, WAYS>(unit, r)) * UNIT + within,
                   codes + (row * KB + at.block + unit) * UNIT + within);
    }
    half_t* to = reinterpret_cast<half_t*>(panel + CODES);
    // rows of an odd number of blocks, and slices that begin at an odd one, are not aligned to a copy of two scales
    const bool pairs = BLOCKS % 2 == 0 && KB % 2 == 0 && at.block % 2 == 0;
    for (int i = threadIdx.x % 32; i < 16 * BLOCKS; i += 32) {
      const int r = i / BLOCKS, j = i % BLOCKS;
      const long long row = index * 16 + r < N ? index * 16 + r : N - 1;
      half_t* here = to + (r % 8 * 2 + r / 8) * BLOCKS + j;
      const half_t* from = scales + row * KB + at.block + j;
      if (j >= count) continue;
      if (!pairs) *here = *from;
      else if (j % 2 == 0) cp_async4(here, from);
    }
  }

  __device__ static void fragment(unsigned (&a)[4], const unsigned char* panel, int b) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const unsigned char* unit = panel + ((g + 8 * half) * BLOCKS + swizzled<BLOCKS, WAYS>(b, g + 8 * half)) * UNIT;
      const uint2 v = BITS == 8 ? load8(unit + 8 * t) : expand_nibbles(load_word(unit + 4 * t));
      a[half] = v.x, a[half + 2] = v.y;
    }
  }

  __device__ static WeightScale scale(const unsigned char* panel, int row, int b) {
    return weight_scale(reinterpret_cast<const half_t*>(panel + CODES)[(row % 8 * 2 + row / 8) * BLOCKS + b]);
  }
};

// Weights as `pretile` wrote them: [N / 16][slice][chunk of 4 blocks] panels in the order in which lanes read fragments.
template <int BITS, int CHUNK = 128>
struct WeightPanels {
  static constexpr int BLOCKS = 4, UNIT = 4 * BITS, CODES = 16 * BLOCKS * UNIT, BYTES = CODES + 32 * BLOCKS;
  static_assert(CHUNK == QUANTUM * BLOCKS, "pre-tiled weights come in chunks of 4 blocks");

  const unsigned char* panels;
  int N, KB;

  template <class WALK>
  __device__ void copy(unsigned char* panel, int index, const WALK& at) const {
    const long long last = (N + 15) / 16 - 1, row = index < last ? index : last;
    const unsigned char* from = panels + ((row * SLICES + at.slice) * chunks_of_slice(KB) + at.chunk()) * BYTES;
    for (int i = threadIdx.x % 32; i < BYTES / 16; i += 32) cp_async16(panel + 16 * i, from + 16 * i);
  }

  __device__ static void fragment(unsigned (&a)[4], const unsigned char* panel, int b) {
    const int l = threadIdx.x % 32;
    if constexpr (BITS == 8) {
      const uint4 v = load16(panel + (b * 32 + l) * 16);
      a[0] = v.x, a[1] = v.y, a[2] = v.z, a[3] = v.w;
    } else {
      const uint2 packed = load8(panel + (b / 2 * 32 + l) * 16 + b % 2 * 8);
      const uint2 top = expand_nibbles(packed.x), bottom = expand_nibbles(packed.y);
      a[0] = top.x, a[1] = bottom.x, a[2] = top.y, a[3] = bottom.y;
    }
  }

  __device__ static WeightScale scale(const unsigned char* panel, int row, int b) {
    return weight_scale(reinterpret_cast<const half_t*>(panel + CODES)[(row % 8 * 2 + row / 8) * BLOCKS + b]);
  }
};

// A chunk of ROWS rows of activations in shared memory: swizzled codes [word][row], then scales [block][row].
template <int WORDS, int ROWS, int BLOCKS>
struct ActivationStage {
  static constexpr int CODES = WORDS * ROWS * BLOCKS * QUANTUM, BYTES = CODES + ROWS * BLOCKS * 4;

  // by all threads of the block; a row past the last reads the last again
  template <class WALK>
  __device__ static void copy(unsigned char* to, const signed char* codes, const float* scales, int first, int rows, int KB,
                              const WALK& at) {
    const int count = at.count();
    for (int i = threadIdx.x; i < WORDS * ROWS * BLOCKS * 2; i += blockDim.x) {
      const int half = i % 2, unit = i / 2 % BLOCKS, r = i / (2 * BLOCKS) % ROWS, word = i / (2 * BLOCKS * ROWS);
      const long long row = first + r < rows ? first + r : rows - 1;
      if (unit < count)
        cp_async16(to + ((word * ROWS + r) * BLOCKS + swizzled<BLOCKS, 4>(unit, r)) * QUANTUM + 16 * half,
                   codes + ((row * WORDS + word) * KB + at.block + unit) * QUANTUM + 16 * half);
    }
    float* s = reinterpret_cast<float*>(to + CODES);
    for (int i = threadIdx.x; i < ROWS * BLOCKS; i += blockDim.x) {
      const int r = i / BLOCKS, j = i % BLOCKS;
      const long long row = first + r < rows ? first + r : rows - 1;
      if (j < count) cp_async4(s + j * ROWS + r, scales + row * KB + at.block + j);
    }
  }

  // the 8 codes of block b that this lane owns of a row
  __device__ static uint2 codes(const unsigned char* stage, int word, int r, int b) {
    return load8(stage + ((word * ROWS + r) * BLOCKS + swizzled<BLOCKS, 4>(b, r)) * QUANTUM + 8 * (threadIdx.x % 4));
  }

  __device__ static float scale(const unsigned char* stage, int r, int b) {
    return reinterpret_cast<const float*>(stage + CODES)[b * ROWS + r];
  }
};

// Runs the chunks of a share of K through a ring of STAGES stages: copy(chunk, stage) issues copies, use(chunk, stage)
// multiplies. S - 1 chunks are issued first; then every turn issues the chunk S - 1 ahead before it waits for its own,
// with S - 1 groups pending while there was one to issue and none at the end.
template <int STAGES, int BLOCKS, class COPY, class USE>
__device__ inline void run_ring(Slices share, int KB, COPY copy, USE use) {
  static_assert(STAGES >= 1, "a ring has at least one stage");
  Walk<BLOCKS> ahead(share, KB), now = ahead;
  int filled = 0, used = 0;
  for (int i = 0; i < STAGES - 1 && !ahead.done(); ++i, ahead.next()) {
    copy(ahead, filled++);
    cp_async_commit();
  }
  for (; !now.done(); now.next()) {
    if (!ahead.done()) {
      copy(ahead, filled);
      cp_async_commit();
      cp_async_wait<STAGES - 1>();
      ahead.next();
      filled = filled + 1 < STAGES ? filled + 1 : 0;
    } else {
      cp_async_wait<0>();
    }
    __syncthreads();
    use(now, used);
    __syncthreads();
    used = used + 1 < STAGES ? used + 1 : 0;
  }
}

}  // namespace lane
