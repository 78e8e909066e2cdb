// The input of the draft head: normed embedding and normed hidden state side by side, the embedding half first, as
// codes. One block a row and half; each half is an RMS norm of its own.
#include "row_norm.cuh"

template <int WORDS>
__global__ void __launch_bounds__(1024, 1)
mtp_concat_quantize(const float* __restrict__ embedded /* [rows, K] */, int embedded_pitch,
                    const float* __restrict__ hidden /* [rows, K] */, int hidden_pitch,
                    const float* __restrict__ enorm /* [K] */, const float* __restrict__ hnorm /* [K] */,
                    signed char* __restrict__ codes /* [rows, WORDS, 2 K] */,
                    float* __restrict__ scales /* [rows, 2 K/32] */, int columns,
                    int K, float eps) {
  lane::overlap_launches();
  SHARED(float, chunk_sums, [CHUNKS]);
  const long long row = blockIdx.x;
  const bool second = blockIdx.y;
  const float* x = second ? hidden + row * hidden_pitch : embedded + row * embedded_pitch;
  const int first = threadIdx.x * OWNED, step = blockDim.x * OWNED;
  for (int k = first; k - first % CHUNK < K; k += step) {
    float v[OWNED];
    lane::load_row(v, x + k, k < K);
    const float sum = sum_of_squares(v);
    if (k % CHUNK == 0) chunk_sums[k / CHUNK] = sum;
  }
  __syncthreads();
  const float root = root_mean_square(chunk_sums, K, eps);
  const float* w = second ? hnorm : enorm;
  for (int k = first; k - first % CHUNK < K; k += step) {
    float v[OWNED], weight[OWNED];
    lane::load_row(v, x + k, k < K);
    lane::load_row(weight, w + k, k < K);
    lane::Divisor(root).divide(v);
#pragma unroll
    for (int i = 0; i < OWNED; ++i) v[i] = v[i] * weight[i];
    // a lane behind the end of its half takes part in the block's maximum and must store nothing
    lane::store_codes<WORDS>(v, k < K ? k + second * K : 2 * K, 2 * K, {codes, scales, row, columns});
  }
}
