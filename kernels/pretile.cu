// Weight pre-tiling: rows of codes and scales into panels of 16 rows by 4 blocks, in the order in which the lanes of a
// warp read mma fragments, each panel's float16 scales behind its codes. A pure permutation, padded by values of zero.
//
// Panels lie as [N / 16][slice][chunk of the slice]: a warp that does one slice of 16 rows reads one piece of memory. Lane
// (g, t) owns elements 4t .. 4t + 3 (low) and 16 + 4t .. (high) of a block of rows g and g + 8. Codes of 8 bits: [block][lane]
// 16 bytes: row g low, row g + 8 low, row g high, row g + 8 high, which is the A operand of m16n8k32. Codes of 4 bits:
// [pair of blocks][lane] 16 bytes: for each block a word of row g and one of row g + 8, low in the low nibbles of its bytes
// and high in the high ones. Scales: [g][row g, row g + 8][block].
#include "projection_weights.cuh"

constexpr unsigned ZERO_NIBBLES = 0x88888888u;  // a packed code is biased by 8

template <int BITS>
__global__ void __launch_bounds__(256)
pretile(const unsigned char* __restrict__ codes /* [N, K * BITS / 8] */, const half_t* __restrict__ scales /* [N, KB] */,
        unsigned char* __restrict__ tiles /* [panels, 8, chunks, 64 * BITS * 4 + 128] */, int N, int KB) {
  constexpr int BLOCKS = 4, UNIT = 4 * BITS, CODES = 16 * BLOCKS * UNIT, BYTES = CODES + 32 * BLOCKS;
  static_assert(BITS == 8 || BITS == 4, "weight codes have 8 bits (Q8_0) or 4 (Q4)");
  const int chunks = lane::chunks_of_slice(KB), l = threadIdx.x % 32, g = l / 4, t = l % 4;
  // the 8 slices of every chunk fill a block of 8 warps, so that no warp is without a panel
  const long long unit = static_cast<long long>(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
  const int chunk = static_cast<int>(unit % chunks), slice = static_cast<int>(unit / chunks % lane::SLICES);
  const long long panel = unit / chunks / lane::SLICES;
  const int block = lane::slice_begin(slice, KB) + BLOCKS * chunk, count = lane::slice_begin(slice + 1, KB) - block;
  const auto holds = [&](int half, int j) { return panel * 16 + g + 8 * half < N && j < count; };
  const auto unit_of = [&](int half, int j) { return (panel * 16 + g + 8 * half) * KB + block + j; };
  unsigned char* to = tiles + unit * BYTES;

#pragma unroll
  for (int j = 0; j < BLOCKS; j += 8 / BITS) {
    unsigned word[4];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if constexpr (BITS == 8) {
        const auto* from = reinterpret_cast<const unsigned*>(codes + unit_of(half, j) * UNIT) + t;
        word[half] = holds(half, j) ? from[0] : 0, word[half + 2] = holds(half, j) ? from[4] : 0;
      } else {
        for (int k = 0; k < 2; ++k) {
          const auto* from = reinterpret_cast<const unsigned short*>(codes + unit_of(half, j + k) * UNIT) + t;
          word[2 * k + half] = ZERO_NIBBLES;
          if (holds(half, j + k)) word[2 * k + half] = lane::spread_nibbles(from[0]) | lane::spread_nibbles(from[4]) << 4;
        }
      }
    }
    lane::store16(to + (j * BITS / 8 * 32 + l) * 16, uint4{word[0], word[1], word[2], word[3]});
  }
  // 64 scales, two a lane: lane 4g + 2 half + j / 2 holds blocks j and j + 1 of row g + 8 half
  const int half = t / 2, j = t % 2 * 2;
  half_t* s = reinterpret_cast<half_t*>(to + CODES) + 2 * l;
  s[0] = holds(half, j) ? scales[unit_of(half, j)] : half_t{0};
  s[1] = holds(half, j + 1) ? scales[unit_of(half, j + 1)] : half_t{0};
}
