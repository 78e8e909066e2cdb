// Rows of codes in shared memory: where they lie, how they are copied there, and fragments of m16n8k32 read from them, as
// the PTX ISA lays them out.
#pragma once
#include "projection.cuh"

namespace lane {

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

}  // namespace lane
