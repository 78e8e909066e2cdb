// The RMS norm of a long row in chunks of 256, shared by every kernel that norms rows (rms_norm.cu says the order).
#pragma once
#include "codes.cuh"

constexpr int OWNED = 8;     // elements a lane owns: two 16-byte loads, a quarter of a block of 32
constexpr int CHUNK = 256;   // OWNED elements in each of 32 lanes
constexpr int CHUNKS = 256;  // longest row is CHUNKS * CHUNK elements

static_assert(CHUNK == 32 * OWNED, "rms_norm: a chunk is what one warp owns");

__device__ inline int chunks_of(int K) { return (K + CHUNK - 1) / CHUNK; }

__device__ inline float sum_of_squares(const float (&v)[OWNED]) {
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < OWNED; ++i) sum = fmaf(v[i], v[i], sum);
  return lane::warp_sum(sum);
}

// every thread adds the chunks itself, ascending: no second barrier, and equal bits in every thread
__device__ inline float root_mean_square(const float* chunk_sums, int K, float eps) {
  float total = 0.0f;
// loads four at a time ahead of the chain of additions
#pragma unroll 4
  for (int c = 0; c < chunks_of(K); ++c) total = total + chunk_sums[c];
  return lane::finite_root(total / static_cast<float>(K) + eps);
}

// one warp, one chunk: what a lane owns is normed, weighted, copied out if asked for, and quantised
template <int WORDS>
__device__ inline void finish_chunk(float (&v)[OWNED], const float (&weight)[OWNED], float root, int k, int K,
                                    const lane::CodeRow& to, float* __restrict__ normed) {
  lane::Divisor(root).divide(v);
#pragma unroll
  for (int i = 0; i < OWNED; ++i) v[i] = v[i] * weight[i];
  if (normed != nullptr && k < K) lane::store_row(normed + k, v);
  lane::store_codes<WORDS>(v, k, K, to);
}
