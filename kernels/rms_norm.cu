// RMS norm of rows, with the residual add before it and the quantiser after it.
//
// y = (x / root(mean(x^2) + eps)) * w. The sum of squares has one order at any row length and block count: chunks of
// 256 elements, in a chunk lane l owns elements 8l .. 8l+7 (a chain of fma from zero) and the lanes are summed by the
// xor tree 16, 8, 4, 2, 1; chunks are added ascending from zero. A warp does a chunk, so that one block a row and many
// blocks a row are the same bits.
#include "hopper.cuh"
#include "row_norm.cuh"

constexpr int MOST_WARPS = 32;   // of the largest block: longer rows go to the many-block form
constexpr int FEW_WARPS = 20;    // of a block that has registers for eight planes in flight
constexpr int SPREAD_WARPS = 8;  // of a block that shares its row with others
constexpr int SPREAD_CHUNKS = 8 * SPREAD_WARPS;

// the residual's elements that a lane owns, after they took y, or the sum of its planes
template <bool PLANED, int FLIGHT>
__device__ inline void add_chunk(float (&v)[OWNED], float* __restrict__ x, const float* __restrict__ y, int planes,
                                 long long stride, int k, int K) {
  float more[OWNED];
  lane::load_row(v, x + k, k < K);
  lane::load_planes<PLANED, FLIGHT>(more, y + k, k < K, planes, stride);
#pragma unroll
  for (int i = 0; i < OWNED; ++i) v[i] = v[i] + more[i];
  if (k < K) lane::store_row(x + k, v);
}

// One block a row, one warp a chunk: the row stays in registers from its load to its codes.
template <int WORDS>
__device__ inline void norm_row(float (&v)[OWNED], const float (&weight)[OWNED], const lane::CodeRow& to,
                                float* __restrict__ normed, int normed_pitch, int K, float eps) {
  SHARED(float, chunk_sums, [MOST_WARPS]);
  const int k = threadIdx.x * OWNED;
  const float sum = sum_of_squares(v);
  if (k % CHUNK == 0) chunk_sums[k / CHUNK] = sum;
  __syncthreads();
  const float root = root_mean_square(chunk_sums, K, eps);
  float* copy = normed == nullptr ? nullptr : normed + to.row * normed_pitch;
  finish_chunk<WORDS>(v, weight, root, k, K, to, copy);
}

template <int WORDS>
__global__ void __launch_bounds__(32 * MOST_WARPS, 1)
rms_norm_quantize(const float* __restrict__ x /* [rows, K] */, int x_pitch, const float* __restrict__ w /* [K] */,
                  signed char* __restrict__ codes /* [rows, WORDS, K] */, float* __restrict__ scales /* [rows, K/32] */, int columns,
                  float* __restrict__ normed /* [rows, K] or null */, int normed_pitch, int K, float eps) {
  lane::admit_next_launch();
  const int k = threadIdx.x * OWNED;
  float v[OWNED], weight[OWNED];
  lane::load_row(weight, w + k, k < K);
  lane::await_launches_before();
  lane::load_row(v, x + static_cast<long long>(blockIdx.x) * x_pitch + k, k < K);
  norm_row<WORDS>(v, weight, {codes, scales, blockIdx.x, columns}, normed, normed_pitch, K, eps);
}

template <int WORDS, bool PLANED, int WARPS>
__global__ void __launch_bounds__(32 * WARPS, 1)
add_rms_norm_quantize(float* __restrict__ x /* [rows, K], the residual */, int x_pitch,
                      const float* __restrict__ y /* [planes, rows, K] */, int y_pitch, int planes,
                      const float* __restrict__ w /* [K] */, signed char* __restrict__ codes /* [rows, WORDS, K] */,
                      float* __restrict__ scales /* [rows, K/32] */, int columns, float* __restrict__ normed /* [rows, K] or null */,
                      int normed_pitch, int K, float eps) {
  lane::admit_next_launch();
  const long long row = blockIdx.x, stride = static_cast<long long>(gridDim.x) * y_pitch;
  const int k = threadIdx.x * OWNED;
  float v[OWNED], weight[OWNED];
  lane::load_row(weight, w + k, k < K);
  lane::await_launches_before();
  constexpr int FLIGHT = WARPS <= FEW_WARPS ? 8 : 4;
  add_chunk<PLANED, FLIGHT>(v, x + row * x_pitch, y + row * y_pitch, planes, stride, k, K);
  norm_row<WORDS>(v, weight, {codes, scales, blockIdx.x, columns}, normed, normed_pitch, K, eps);
}

// The root of the mean square once all chunk sums have been posted here: a lane awaits every 32nd, all add all of them.
__device__ inline float posted_root(const unsigned long long* chunk_sums, int K, float eps) {
  const int chunks = chunks_of(K), l = threadIdx.x % 32;
  float total = 0.0f;
  for (int first = 0; first < chunks; first += 32) {
    const float mine = first + l < chunks ? lane::await_post(chunk_sums + first + l) : 0.0f;
    const int count = chunks - first < 32 ? chunks - first : 32;
#pragma unroll 4
    for (int c = 0; c < count; ++c) total = total + __shfl_sync(0xFFFFFFFFu, mine, c);
  }
  return lane::finite_root(total / static_cast<float>(K) + eps);
}

// The blocks of a cluster share a row: each sums its chunks, and all of them get every chunk's sum. For few rows, whose
// planes one multiprocessor would read alone.
template <int WORDS, bool PLANED>
__global__ void __launch_bounds__(32 * SPREAD_WARPS, 1)
add_rms_norm_spread(float* __restrict__ x /* [rows, K], the residual */, int x_pitch,
                    const float* __restrict__ y /* [planes, rows, K] */, int y_pitch, int planes,
                    const float* __restrict__ w /* [K] */, signed char* __restrict__ codes /* [rows, WORDS, K] */,
                    float* __restrict__ scales /* [rows, K/32] */, int columns, float* __restrict__ normed /* [rows, K] or null */,
                    int normed_pitch, int K, float eps) {
  lane::admit_next_launch();
  SHARED(unsigned long long, chunk_sums, [SPREAD_CHUNKS]);
  const int blocks = lane::cluster_blocks(), l = threadIdx.x % 32;
  const long long row = blockIdx.x / blocks, stride = static_cast<long long>(gridDim.x / blocks) * y_pitch;
  const int chunk = lane::cluster_rank() * (blockDim.x / 32) + threadIdx.x / 32, k = chunk * CHUNK + l * OWNED;
  float v[OWNED], weight[OWNED];
  lane::load_row(weight, w + k, k < K);
  for (int i = threadIdx.x; i < SPREAD_CHUNKS; i += blockDim.x) chunk_sums[i] = 0;
  lane::cluster_barrier();  // every block runs, and no sum has come
  lane::await_launches_before();
  add_chunk<PLANED, 8>(v, x + row * x_pitch, y + row * y_pitch, planes, stride, k, K);
  const float sum = sum_of_squares(v);
  // nobody awaits a chunk behind the end, and whoever has all the others may be gone
  if (l < blocks && chunk < chunks_of(K)) lane::post(lane::of_block(chunk_sums, l) + chunk, sum);
  const float root = posted_root(chunk_sums, K, eps);
  float* copy = normed == nullptr ? nullptr : normed + row * normed_pitch;
  finish_chunk<WORDS>(v, weight, root, k, K, {codes, scales, row, columns}, copy);
}

// Many blocks a row where there are no clusters: the first kernel adds and leaves chunk sums, the second norms and
// quantises.
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
  add_chunk<PLANED, 4>(v, x + row * x_pitch, y + row * y_pitch, planes, stride, chunk * CHUNK + own, K);
  const float sum = sum_of_squares(v);
  if (own == 0) chunk_sums[row * chunks_of(K) + chunk] = sum;
}

template <int WORDS>
__global__ void __launch_bounds__(256)
add_rms_norm_apply(const float* __restrict__ x /* [rows, K] */, int x_pitch,
                   const float* __restrict__ chunk_sums /* [rows, chunks] */, const float* __restrict__ w /* [K] */,
                   signed char* __restrict__ codes /* [rows, WORDS, K] */,
                   float* __restrict__ scales /* [rows, K/32] */, int columns, float* __restrict__ normed /* [rows, K] or null */,
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
  finish_chunk<WORDS>(v, weight, root, k, K, {codes, scales, row, columns}, copy);
}
