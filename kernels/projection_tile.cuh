// Tensor-core tiles of a projection: fragments of m16n8k32 as the PTX ISA lays them out, the ring of stages in shared
// memory that they are read from, and its copies.
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

// Where 16-byte unit `unit` of a row of UNITS lies: the 8 rows that one matrix of ldmatrix reads must lie in different
// banks. The mask follows from the units a row has: a wider one would lead out of the row.
template <int UNITS>
__device__ inline int swizzled(int unit, int row) {
  static_assert((UNITS & (UNITS - 1)) == 0, "swizzle: a row holds a power of two of units, or XOR would leave the row");
  constexpr int ROWS_OF_LINE = UNITS < 8 ? 8 / UNITS : 1, MASK = (UNITS < 8 ? UNITS : 8) - 1;
  return unit ^ (row / ROWS_OF_LINE & MASK);
}

// a 64-bit offset of two 32-bit factors: one instruction, where 64-bit factors need six
__device__ inline long long widened(int a, int b) { return static_cast<long long>(a) * b; }

// Rows of codes of one chunk in shared memory, ROW bytes each, swizzled.
template <int ROWS, int ROW>
struct CodeRows {
  static constexpr int UNITS = ROW / 16, BYTES = ROWS * ROW;

  // by THREADS threads, this one being `thread`: the first `bytes` of every row; a row past the last reads the last again
  template <int THREADS>
  __device__ static void copy(unsigned char* to, const void* from, int row_bytes, int rows, int bytes, int thread) {
    static_assert(THREADS % UNITS == 0, "copy: a thread keeps its unit of a row");
    constexpr int STEP = THREADS / UNITS;
    const int unit = thread % UNITS, first = thread / UNITS;
    if (unit * 16 >= bytes) return;
    const unsigned char* source = static_cast<const unsigned char*>(from) + unit * 16;
    // where the swizzle comes back to itself after STEP rows, one place serves them all
    unsigned char* place = to + (first * UNITS + swizzled<UNITS>(unit, first)) * 16;
#pragma unroll
    for (int i = 0; i < (ROWS + STEP - 1) / STEP; ++i) {
      const int r = first + i * STEP;
      if (ROWS % STEP != 0 && r >= ROWS) break;
      if constexpr (STEP % 8 != 0) place = to + (r * UNITS + swizzled<UNITS>(unit, r)) * 16;
      cp_async16(STEP % 8 != 0 ? place : place + i * STEP * UNITS * 16, source + widened(r < rows ? r : rows - 1, row_bytes));
    }
  }

  __device__ static const unsigned char* unit(const unsigned char* rows, int row, int unit) {
    return rows + (row * UNITS + swizzled<UNITS>(unit, row)) * 16;
  }

  // block b of rows first .. first + 15 as the A operand
  __device__ static void row_fragment(unsigned (&a)[4], const unsigned char* rows, int first, int b) {
    const int l = threadIdx.x % 32;
    ldmatrix_x4(a, unit(rows, first + l % 16, 2 * b + l / 16));
  }

  // block b of rows first .. first + 7 as one B operand, or of rows first .. first + 15 as two
  __device__ static void column_fragment(unsigned (&f)[2], const unsigned char* rows, int first, int b) {
    const int l = threadIdx.x % 32;
    ldmatrix_x2(f, unit(rows, first + l % 8, 2 * b + l / 8 % 2));
  }
  __device__ static void column_fragment(unsigned (&f)[4], const unsigned char* rows, int first, int b) {
    const int l = threadIdx.x % 32;
    ldmatrix_x4(f, unit(rows, first + l / 16 * 8 + l % 8, 2 * b + l / 8 % 2));
  }
};

// Four codes -8 .. 7 from nibbles biased by 8, one in the low half of each byte. Bit 7 is lent before the subtraction and
// taken back after it, so that no byte borrows from its neighbour.
__device__ inline unsigned unbias(unsigned nibbles) { return ((nibbles | 0x80808080u) - 0x08080808u) ^ 0x80808080u; }

// the same from 16 bits that hold the nibbles in the order of K
__device__ inline unsigned spread_nibbles(unsigned packed) {
  const unsigned twice = __byte_perm(packed, 0, 0x1100);
  return (twice & 0x000F000Fu) | (twice >> 4 & 0x0F000F00u);
}

// Weights as rows: codes of BITS bits [N][K], float16 scales [N][KB]. A panel is 16 rows of a chunk in shared memory:
// codes, then scales as [row % 8][row / 8][block].
template <int BITS, int CHUNK>
struct WeightRows {
  static constexpr int BLOCKS = CHUNK / QUANTUM, UNIT = 4 * BITS;
  static_assert(CHUNK > 0 && CHUNK % QUANTUM == 0,
                "a K step is whole blocks of 32; what lies past the last one would be staged and never multiplied");
  static_assert(BITS == 8 || BITS == 4, "weight codes have 8 bits (Q8_0) or 4 (Q4)");
  using Codes = CodeRows<16, BLOCKS * UNIT>;
  static constexpr int BYTES = Codes::BYTES + 32 * BLOCKS;
  static constexpr bool TILED = false;

  const unsigned char* codes;
  const half_t* scales;
  int N, KB;

  // panel `index` of the matrix, by one warp
  template <class WALK>
  __device__ void copy(unsigned char* panel, int index, const WALK& at) const {
    const int last = N - 1 - index * 16, l = threadIdx.x % 32, count = at.count();
    // a panel past the last row reads that row
    const long long block = widened(last < 0 ? N - 1 : index * 16, KB) + at.block;
    Codes::template copy<32>(panel, codes + block * UNIT, KB * UNIT, last < 0 ? 1 : last + 1, count * UNIT, l);
    // rows of an odd number of blocks, and slices that begin at an odd one, are not aligned to a copy of two scales
    const bool pairs = BLOCKS % 2 == 0 && KB % 2 == 0 && at.block % 2 == 0;
    half_t* to = reinterpret_cast<half_t*>(panel + Codes::BYTES);
#pragma unroll
    for (int i = 0; i < BLOCKS / 2; ++i) {
      const int r = (l + 32 * i) / BLOCKS, j = l % BLOCKS;
      const half_t* from = scales + block + widened(r <= last ? r : last < 0 ? 0 : last, KB) + j;
      half_t* here = to + (r % 8 * 2 + r / 8) * BLOCKS + j;
      if (j >= count) continue;
      if (!pairs) *here = *from;
      else if (j % 2 == 0) cp_async4(here, from);
    }
  }

  __device__ static void row_fragment(unsigned (&a)[4], const unsigned char* panel, int b) {
    if constexpr (BITS == 8) return Codes::row_fragment(a, panel, 0, b);
    const int g = threadIdx.x % 32 / 4;
    expand(a[0], a[2], panel, g, b), expand(a[1], a[3], panel, g + 8, b);
  }

  // rows 0 .. 7 as one B operand, rows 8 .. 15 as the next
  __device__ static void column_fragments(unsigned (&f)[4], const unsigned char* panel, int b) {
    if constexpr (BITS == 8) return Codes::column_fragment(f, panel, 0, b);
    const int g = threadIdx.x % 32 / 4;
    expand(f[0], f[1], panel, g, b), expand(f[2], f[3], panel, g + 8, b);
  }

  __device__ static WeightScale scale(const unsigned char* panel, int row, int b) {
    return weight_scale(reinterpret_cast<const half_t*>(panel + Codes::BYTES)[(row % 8 * 2 + row / 8) * BLOCKS + b]);
  }

 private:
  // elements 4t .. 4t + 3 and 16 + 4t .. 16 + 4t + 3 of a packed block
  __device__ static void expand(unsigned& low, unsigned& high, const unsigned char* panel, int row, int b) {
    const auto* words = reinterpret_cast<const unsigned short*>(Codes::unit(panel, row, b)) + threadIdx.x % 4;
    low = unbias(spread_nibbles(words[0])), high = unbias(spread_nibbles(words[4]));
  }
};

// Weights as `pretile` wrote them: [N / 16][slice][chunk of 4 blocks] panels in the order in which lanes read fragments.
template <int BITS, int CHUNK = 128>
struct WeightPanels {
  static constexpr int BLOCKS = 4, UNIT = 4 * BITS, CODES = 16 * BLOCKS * UNIT, BYTES = CODES + 32 * BLOCKS;
  static constexpr bool TILED = true;
  static_assert(CHUNK == QUANTUM * BLOCKS, "pre-tiled weights come in chunks of 4 blocks");

  const unsigned char* panels;
  int N, KB;

  template <class WALK>
  __device__ void copy(unsigned char* panel, int index, const WALK& at) const {
    const long long last = (N + 15) / 16 - 1, row = index < last ? index : last;
    const unsigned char* from = panels + ((row * SLICES + at.slice) * chunks_of_slice(KB) + at.chunk()) * BYTES;
#pragma unroll
    for (int i = 0; i < (BYTES + 511) / 512; ++i) {
      const int at_byte = i * 512 + threadIdx.x % 32 * 16;
      if (at_byte < BYTES) cp_async16(panel + at_byte, from + at_byte);
    }
  }

  __device__ static void row_fragment(unsigned (&a)[4], const unsigned char* panel, int b) {
    const int l = threadIdx.x % 32;
    if constexpr (BITS == 8) {
      const uint4 v = load16(panel + (b * 32 + l) * 16);
      a[0] = v.x, a[1] = v.y, a[2] = v.z, a[3] = v.w;
    } else {
      const uint2 v = load8(panel + (b / 2 * 32 + l) * 16 + b % 2 * 8);
      a[0] = unbias(v.x & 0x0F0F0F0Fu), a[2] = unbias(v.x >> 4 & 0x0F0F0F0Fu);
      a[1] = unbias(v.y & 0x0F0F0F0Fu), a[3] = unbias(v.y >> 4 & 0x0F0F0F0Fu);
    }
  }

  __device__ static void column_fragments(unsigned (&f)[4], const unsigned char* panel, int b) {
    if constexpr (BITS == 8) {
      // four loads of a word: one of 16 bytes would leave low and high of a row apart, and each product would copy its pair
      const auto* words = reinterpret_cast<const volatile unsigned*>(panel + (b * 32 + threadIdx.x % 32) * 16);
      f[0] = words[0], f[1] = words[2], f[2] = words[1], f[3] = words[3];
    } else {
      unsigned a[4];
      row_fragment(a, panel, b);
      f[0] = a[0], f[1] = a[2], f[2] = a[1], f[3] = a[3];
    }
  }

  __device__ static WeightScale scale(const unsigned char* panel, int row, int b) {
    return weight_scale(reinterpret_cast<const half_t*>(panel + CODES)[(row % 8 * 2 + row / 8) * BLOCKS + b]);
  }
};

// A chunk of ROWS rows of activations in shared memory: codes [word][row], then scales [block][place of the row]. With
// TILES > 0 the scales that a lane needs of a warp's TILES fragments of 16 rows lie side by side.
template <int WORDS, int ROWS, int BLOCKS, int TILES = 0>
struct ActivationStage {
  using Codes = CodeRows<ROWS, BLOCKS * QUANTUM>;
  static constexpr int CODES = WORDS * Codes::BYTES, BYTES = CODES + ROWS * BLOCKS * 4;

  // rows first .. of `rows`, by THREADS threads
  template <int THREADS, class WALK>
  __device__ static void copy(unsigned char* to, const signed char* codes, const float* scales, int first, int rows, int KB,
                              const WALK& at, int thread) {
    const int row_bytes = WORDS * KB * QUANTUM;
    const float* from_scale = scales + widened(first, KB) + at.block;
    const signed char* from = codes + widened(first, row_bytes) + at.block * QUANTUM;
#pragma unroll
    for (int word = 0; word < WORDS; ++word)
      Codes::template copy<THREADS>(to + word * Codes::BYTES, from + word * (KB * QUANTUM), row_bytes, rows - first,
                                    at.count() * QUANTUM, thread);
    float* s = reinterpret_cast<float*>(to + CODES);
    constexpr int STEP = THREADS / BLOCKS;
    const int j = thread % BLOCKS;
    if (j >= at.count()) return;
#pragma unroll
    for (int i = 0; i < (ROWS + STEP - 1) / STEP; ++i) {
      const int r = thread / BLOCKS + i * STEP;
      if (ROWS % STEP != 0 && r >= ROWS) break;
      cp_async4(s + j * ROWS + place(r), from_scale + j + widened(first + r < rows ? r : rows - 1 - first, KB));
    }
  }

  __device__ static const unsigned char* word(const unsigned char* stage, int w) { return stage + w * Codes::BYTES; }

  __device__ static float scale(const unsigned char* stage, int r, int b) {
    return reinterpret_cast<const float*>(stage + CODES)[b * ROWS + place(r)];
  }

  // the scales of rows g and g + 8 of each fragment of the warp whose rows begin at `first`
  template <int COUNT>
  __device__ static void scales(float (&xs)[COUNT][2], const unsigned char* stage, int first, int b) {
    static_assert(COUNT == TILES && COUNT % 2 == 0, "scales: a lane loads those of two fragments at once");
    const auto* from = reinterpret_cast<const float*>(stage + CODES) + b * ROWS + place(first + threadIdx.x % 32 / 4);
#pragma unroll
    for (int m = 0; m < TILES; m += 2) {
      const uint4 four = load16(from + 2 * m);
      xs[m][0] = from_bits(four.x), xs[m][1] = from_bits(four.y);
      xs[m + 1][0] = from_bits(four.z), xs[m + 1][1] = from_bits(four.w);
    }
  }

 private:
  __device__ static int place(int r) {
    if constexpr (TILES == 0) return r;
    constexpr int WARP_ROWS = TILES > 0 ? 16 * TILES : 1;
    return r / WARP_ROWS * WARP_ROWS + r % 8 * (2 * TILES) + r % WARP_ROWS / 8;
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
  for (int turn = 1 - STAGES; !now.done(); ++turn) {
    const bool more = !ahead.done();
    if (more) {
      copy(ahead, filled);
      cp_async_commit();
      filled = filled + 1 < STAGES ? filled + 1 : 0;
      ahead.next();
    }
    if (turn < 0) continue;
    if (more) cp_async_wait<STAGES - 1>();
    else cp_async_wait<0>();
    __syncthreads();
    use(now, used);
    __syncthreads();
    used = used + 1 < STAGES ? used + 1 : 0;
    now.next();
  }
}

}  // namespace lane
