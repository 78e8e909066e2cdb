// Row-parallel GEMV: several warps take the blocks of 2 weight rows side by side, a lane a block, so that memory is read
// in whole lines and both rows share each load of activations. The products of all blocks wait in shared memory until
// the chains of the slices, one a thread, take them up in order. It holds SEQS sequences and is refused for more.
#include "projection.cuh"

constexpr int PAIR = 2;

template <int WORDS, int SEQS>
__global__ void __launch_bounds__(256)
gemv_rows(const signed char* __restrict__ codes /* [rows, WORDS, K] */, const float* __restrict__ scales /* [rows, KB] */,
          const signed char* __restrict__ w /* [N, K] */, const half_t* __restrict__ ws /* [N, KB] */,
          float* __restrict__ y /* [rows, N] */, int y_pitch, int rows, int N, int KB) {
  constexpr int OUTPUTS = PAIR * SEQS, PITCH = OUTPUTS + 1;  // odd, so that lanes store to different banks
  DYNAMIC_SHARED(float, products);                           // [KB][PITCH], scaled by the weight
  SHARED(float, sums, [lane::SLICES][OUTPUTS]);
  const int K = KB * lane::QUANTUM;
  for (int n = blockIdx.x * PAIR; n < N; n += gridDim.x * PAIR) {
    for (int b = threadIdx.x; b < KB; b += blockDim.x) {
      lane::Codes32 code[PAIR];
      lane::WeightScale s[PAIR];
#pragma unroll
      for (int r = 0; r < PAIR; ++r) {
        const long long row = n + r < N ? n + r : N - 1;
        code[r].load(w + row * K + b * lane::QUANTUM), s[r] = lane::weight_scale(ws[row * KB + b]);
      }
#pragma unroll
      for (int q = 0; q < SEQS; ++q) {
        const long long row = q < rows ? q : rows - 1;
        lane::Codes32 x[WORDS];
#pragma unroll
        for (int word = 0; word < WORDS; ++word) x[word].load(codes + (row * WORDS + word) * K + b * lane::QUANTUM);
#pragma unroll
        for (int r = 0; r < PAIR; ++r) {
          int dot[WORDS];
#pragma unroll
          for (int word = 0; word < WORDS; ++word) dot[word] = lane::dot32(code[r], x[word]);
          products[b * PITCH + q * PAIR + r] = lane::scaled(dot, s[r]);
        }
      }
    }
    __syncthreads();
    for (int chain = threadIdx.x; chain < lane::SLICES * OUTPUTS; chain += blockDim.x) {
      const int slice = chain / OUTPUTS, o = chain % OUTPUTS, end = lane::slice_begin(slice + 1, KB);
      const float* xs = scales + static_cast<long long>(o / PAIR < rows ? o / PAIR : rows - 1) * KB;
      float acc = 0.0f;
#pragma unroll 4
      for (int b = lane::slice_begin(slice, KB); b < end; ++b) acc = fmaf(products[b * PITCH + o], xs[b], acc);
      sums[slice][o] = acc;
    }
    __syncthreads();
    if (threadIdx.x < OUTPUTS) {
      const int o = threadIdx.x, q = o / PAIR, r = o % PAIR;
      float total = 0.0f;
#pragma unroll
      for (int slice = 0; slice < lane::SLICES; ++slice) total = total + sums[slice][o];
      if (q < rows && n + r < N) *lane::output(y, 0, rows, q, y_pitch, n + r) = total;
    }
  }
}
