// RMS norm of rows, with the residual add before it and the quantiser after it.
//
// y = (x / root(mean(x^2) + eps)) * w. The sum of squares has one order at any row length and block count: chunks of
// 256 elements, in a chunk lane l owns elements 8l .. 8l+7 (a chain of fma from zero) and the lanes are summed by the
// xor tree 16, 8, 4, 2, 1; chunks are added ascending from zero. A warp does a chunk, so that one block a row and many
// blocks a row are the same bits.
#include "row_norm.cuh"

constexpr int WARPS = 32;  // of the largest block: longer rows go to the many-block form

// the residual's elements that a lane owns, after they took y, or the sum of its planes
template <bool PLANED>
__device__ inline void add_chunk(float (&v)[OWNED], float* __restrict__ x, const float* __restrict__ y, int planes,
                                 long long stride, int k, int K) {
  float more[OWNED];
  lane::load_row(v, x + k, k < K);
  lane::load_planes<PLANED>(more, y + k, k < K, planes, stride);
#pragma unroll
  for (int i = 0; i < OWNED; ++i) v[i] = v[i] + more[i];
  if (k < K) lane::store_row(x + k, v);
}

// One block a row, one warp a chunk: the row stays in registers from its load to its codes.
template <int WORDS>
__device__ inline void norm_row(float (&v)[OWNED], const float* __restrict__ w, signed char* __restrict__ codes,
                                float* __restrict__ scales, float* __restrict__ normed, int normed_pitch, int K,
                                float eps) {
  SHARED(float, chunk_sums, [WARPS]);
  const long long row = blockIdx.x;
  const int k = threadIdx.x * OWNED;
  float weight[OWNED];
  lane::load_row(weight, w + k, k < K);
  const float sum = sum_of_squares(v);
  if (k % CHUNK == 0) chunk_sums[k / CHUNK] = sum;
  __syncthreads();
  const float root = root_mean_square(chunk_sums, K, eps);
  float* copy = normed == nullptr ? nullptr : normed + row * normed_pitch;
  finish_chunk<WORDS>(v, weight, root, k, K, codes + row * WORDS * K, scales + row * (K / lane::BLOCK), copy);
}

template <int WORDS>
__global__ void __launch_bounds__(32 * WARPS, 1)
rms_norm_quantize(const float* __restrict__ x /* [rows, K] */, int x_pitch, const float* __restrict__ w /* [K] */,
                  signed char* __restrict__ codes /* [rows, WORDS, K] */, float* __restrict__ scales /* [rows, K/32] */,
                  float* __restrict__ normed /* [rows, K] or null */, int normed_pitch, int K, float eps) {
  lane::overlap_launches();
  const int k = threadIdx.x * OWNED;
  float v[OWNED];
  lane::load_row(v, x + static_cast<long long>(blockIdx.x) * x_pitch + k, k < K);
  norm_row<WORDS>(v, w, codes, scales, normed, normed_pitch, K, eps);
}

template <int WORDS, bool PLANED>
__global__ void __launch_bounds__(32 * WARPS, 1)
add_rms_norm_quantize(float* __restrict__ x /* [rows, K], the residual */, int x_pitch,
                      const float* __restrict__ y /* [planes, rows, K] */, int y_pitch, int planes,
                      const float* __restrict__ w /* [K] */, signed char* __restrict__ codes /* [rows, WORDS, K] */,
                      float* __restrict__ scales /* [rows, K/32] */, float* __restrict__ normed /* [rows, K] or null */,
                      int normed_pitch, int K, float eps) {
  lane::overlap_launches();
  const long long row = blockIdx.x, stride = static_cast<long long>(gridDim.x) * y_pitch;
  float v[OWNED];
  add_chunk<PLANED>(v, x + row * x_pitch, y + row * y_pitch, planes, stride, threadIdx.x * OWNED, K);
  norm_row<WORDS>(v, w, codes, scales, normed, normed_pitch, K, eps);
}

// Many blocks a row, for few or long rows: the first kernel adds and leaves chunk sums, the second norms and quantises.
template <bool PLANED>
__global__ void __launch_bounds__(256)
add_rms_norm_part(float* __restrict__ x /* [rows, K], the residual */, int x_pitch,
                  const float* __restrict__ y /* [planes, rows, K] */, int y_pitch, int planes,
                  float* __restrict__ chunk_sums /* [rows, chunks] */, int K) {
  lane::overlap_launches();
  const long long row = blockIdx.x, stride = static_cast<long long>(gridDim.x) * y_pitch;
  const int chunk = (blockIdx.y * blockDim.x + threadIdx.x) / 32, own = threadIdx.x % 32 * OWNED;
  if (chunk * CHUNK >= K) return;  // a whole warp: the last block may have more warps than chunks are left
  float v[OWNED];
  add_chunk<PLANED>(v, x + row * x_pitch, y + row * y_pitch, planes, stride, chunk * CHUNK + own, K);
  const float sum = sum_of_squares(v);
  if (own == 0) chunk_sums[row * chunks_of(K) + chunk] = sum;
}

template <int WORDS>
__global__ void __launch_bounds__(256)
add_rms_norm_apply(const float* __restrict__ x /* [rows, K] */, int x_pitch,
                   const float* __restrict__ chunk_sums /* [rows, chunks] */, const float* __restrict__ w /* [K] */,
                   signed char* __restrict__ codes /* [rows, WORDS, K] */,
                   float* __restrict__ scales /* [rows, K/32] */, float* __restrict__ normed /* [rows, K] or null */,
                   int normed_pitch, int K, float eps) {
  lane::overlap_launches();
  const long long row = blockIdx.x;
  const int chunk = (blockIdx.y * blockDim.x + threadIdx.x) / 32, k = chunk * CHUNK + threadIdx.x % 32 * OWNED;
  if (chunk * CHUNK >= K) return;
  float v[OWNED], weight[OWNED];
  lane::load_row(v, x + row * x_pitch + k, k < K);
  lane::load_row(weight, w + k, k < K);
  const float root = root_mean_square(chunk_sums + row * chunks_of(K), K, eps);
  float* copy = normed == nullptr ? nullptr : normed + row * normed_pitch;
  finish_chunk<WORDS>(v, weight, root, k, K, codes + row * WORDS * K, scales + row * (K / lane::BLOCK), copy);
}
