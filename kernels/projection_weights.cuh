// Weights of a tensor-core tile: rows of Q8_0 or Q4 codes, or the panels of `pretile`. A panel is 16 weight rows of a chunk,
// one A operand a block or two B operands.
#pragma once
#include "projection_rows.cuh"

namespace lane {

// Four codes -8 .. 7 from nibbles biased by 8, one in the low half of each byte. Bit 7 is lent before the subtraction and
// taken back after it, so that no byte borrows from its neighbour.
__device__ inline unsigned unbias(unsigned nibbles) { return ((nibbles | 0x80808080u) - 0x08080808u) ^ 0x80808080u; }

// 16 times four codes, from nibbles biased by 8 in the high halves of bytes: the bias is the sign bit turned over
__device__ inline unsigned high_nibbles(unsigned packed) { return and_xor(packed, 0xF0F0F0F0u, 0x80808080u); }

// four nibbles in the low halves of bytes, from 16 bits that hold them in the order of K
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
                "a K step is whole blocks of 32; the rest of a longer one would be staged and never multiplied");
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

  // A operands for dots on MAGIC. A code of 4 bits stays in the high half of its byte; dots are then 16 times too large, and
  // MAGIC is the float whose last place is 1/16.
  static constexpr int MAGIC = BITS == 4 ? 0x49400000 : lane::MAGIC;
  static constexpr float SHIFT = BITS == 4 ? lane::SHIFT / 16 : lane::SHIFT;
  static constexpr bool PAIRS = BITS == 4;  // one load brings two blocks

  // a[b] becomes block first + b, of an even `first`; b ascends
  __device__ static void row_fragments(unsigned (&a)[2][4], const unsigned char* panel, int first, int b) {
    if (PAIRS && b != 0) return;
    const uint4 v = load16(panel + (PAIRS ? first : first + b) * 64 * BITS + threadIdx.x % 32 * 16);
    const unsigned words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (PAIRS) {
        a[i / 2][i % 2] = high_nibbles(words[i] << 4), a[i / 2][2 + i % 2] = high_nibbles(words[i]);
      } else {
        a[b][i] = words[i];
      }
    }
  }

  // the scales of rows g and g + 8, of all blocks
  struct RowScales {
    uint4 stored;

    __device__ void load(const unsigned char* panel) { stored = load16(panel + CODES + threadIdx.x % 32 / 4 * 16); }

    __device__ void of(WeightScale (&s)[2], int b) const {
      const unsigned two[2] = {b < 2 ? stored.x : stored.y, b < 2 ? stored.z : stored.w};
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float ws = to_float(half_t{static_cast<unsigned short>(two[half] >> 16 * (b % 2))});
        s[half] = {ws, -SHIFT * ws};
      }
    }
  };

  // the scales of one row, of all blocks
  struct ScalesOfRow {
    uint2 stored;

    __device__ ScalesOfRow(const unsigned char* panel, int row)
        : stored(load8(panel + CODES + (row % 8 * 2 + row / 8) * 2 * BLOCKS)) {}

    __device__ WeightScale of(int b) const {
      const float ws = to_float(half_t{static_cast<unsigned short>((b < 2 ? stored.x : stored.y) >> 16 * (b % 2))});
      return {ws, -SHIFT * ws};
    }
  };

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

}  // namespace lane
