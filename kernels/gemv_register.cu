// Register GEMV: weights go straight from memory to registers, where each row is used for up to SEQS sequences;
// activations come from memory too and stay in the first cache. Further sequences come by grid.y.
#include "gemv.cuh"

template <int WORDS, int SEQS>
__global__ void __launch_bounds__(128, 2)
gemv_register(const signed char* __restrict__ codes /* [rows, WORDS, K] */, const float* __restrict__ scales,
              const signed char* __restrict__ w /* [N, K] */, const half_t* __restrict__ ws /* [N, KB] */,
              float* __restrict__ y /* [rows, N] */, int y_pitch, int rows, int N, int KB) {
  // blocks in flight: a cache line of weights, or half of one where the codes of 8 rows of activations fill the registers
  constexpr int AHEAD = WORDS * SEQS >= 8 ? lane::AHEAD / 2 : lane::AHEAD;
  const int warps = blockDim.x / 32, slice = threadIdx.x % lane::SLICES, K = KB * lane::QUANTUM;
  const int begin = lane::slice_begin(slice, KB), end = lane::slice_begin(slice + 1, KB);
  const long long first = static_cast<long long>(blockIdx.y) * SEQS;
  const int last = rows - first < SEQS ? static_cast<int>(rows - first) - 1 : SEQS - 1;
  const lane::Activations x{codes + first * WORDS * K, scales + first * KB, WORDS * K, K, KB, last};

  const int groups = (N + lane::ROWS_OF_WARP - 1) / lane::ROWS_OF_WARP;
  for (int group = blockIdx.x * warps + threadIdx.x / 32; group < groups; group += gridDim.x * warps) {
    const int n = group * lane::ROWS_OF_WARP + threadIdx.x % 32 / lane::SLICES;
    const long long row = n < N ? n : N - 1;
    const signed char* w_row = w + row * K;
    const half_t* ws_row = ws + row * KB;
    float acc[SEQS] = {};
    int b = begin;
    for (; b + AHEAD <= end; b += AHEAD)
      lane::add_blocks<WORDS, AHEAD>(acc, w_row + b * lane::QUANTUM, ws_row + b, x.at(b));
    for (; b < end; ++b) lane::add_blocks<WORDS, 1>(acc, w_row + b * lane::QUANTUM, ws_row + b, x.at(b));
    lane::store_slices(acc, y, static_cast<int>(first), rows, y_pitch, n, N);
  }
}
