// A GEMV that gives a slice of a weight row to a lane: a warp owns 4 rows, 8 neighbouring lanes the slices of one. The
// sum of a slice is a chain inside a lane; then the 8 are added ascending. What is shared by its two sources of
// activations, memory (gemv_register) and shared memory (gemv_staged).
#pragma once
#include "projection.cuh"

namespace lane {

constexpr int ROWS_OF_WARP = 32 / SLICES;
constexpr int AHEAD = 4;  // blocks of weights that a lane has in flight: one cache line

// Codes and scales of up to SEQS sequences at a block of K; a sequence past `last` reads the last again.
struct Activations {
  const signed char* codes;
  const float* scales;
  int code_stride, word_stride, scale_stride, last;

  __device__ Activations at(int block) const {
    return {codes + block * QUANTUM, scales + block, code_stride, word_stride, scale_stride, last};
  }
};

// acc[q] after COUNT more blocks; w, ws and x point at the first of them
template <int WORDS, int COUNT, int SEQS>
__device__ inline void add_blocks(float (&acc)[SEQS], const signed char* w, const half_t* ws, const Activations& x) {
  // all loads of weights are issued before the first use: 128 bytes a lane in flight
  Codes32 code[COUNT];
  half_t scale[COUNT];
#pragma unroll
  for (int j = 0; j < COUNT; ++j) code[j].load(w + j * QUANTUM), scale[j] = ws[j];
#pragma unroll
  for (int j = 0; j < COUNT; ++j) {
    const WeightScale s = weight_scale(scale[j]);
#pragma unroll
    for (int q = 0; q < SEQS; ++q) {
      const int row = q < x.last ? q : x.last;
      int dot[WORDS];
      dots32(dot, code[j], x.codes + row * x.code_stride + j * QUANTUM, x.word_stride);
      acc[q] = fmaf(scaled(dot, s), x.scales[row * x.scale_stride + j], acc[q]);
    }
  }
}

// Adds the 8 slices of weight row n, each in one of 8 neighbouring lanes, and stores: lane q of them sequence first + q.
template <int SEQS>
__device__ inline void store_slices(const float (&acc)[SEQS], float* y, int first, int rows, int pitch, int n, int N) {
  static_assert(SEQS >= 1 && SEQS <= SLICES, "gemv: the 8 lanes of a weight row store one sequence each");
  const int slice = threadIdx.x % SLICES, home = threadIdx.x % 32 - slice;
  float mine = 0.0f;
#pragma unroll
  for (int q = 0; q < SEQS; ++q) {
    float total = 0.0f;
#pragma unroll
    for (int s = 0; s < SLICES; ++s) total = total + __shfl_sync(0xFFFFFFFFu, acc[q], home + s);
    if (q == slice) mine = total;
  }
  if (slice < SEQS && first + slice < rows && n < N) *output(y, 0, rows, first + slice, pitch, n) = mine;
}

}  // namespace lane
