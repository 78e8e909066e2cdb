// Staged GEMV: the register GEMV with the activations of its sequences staged in shared memory, 4 blocks of each slice
// at a time, so that all warps of a block read them from there.
#include "gemv.cuh"

// 16-byte words of a slice's codes in the stage; one more than its 4 blocks, so that the 8 slices lie in different banks
constexpr int SLICE_WORDS = 2 * lane::AHEAD + 1;

template <int WORDS, int SEQS>
__device__ inline void stage(uint4 (&codes)[SEQS][WORDS][lane::SLICES][SLICE_WORDS],
                             float (&scales)[SEQS][lane::SLICES][lane::AHEAD], const lane::Activations& x, int step, int KB) {
  // a piece is 16 bytes of codes: half of a block
  for (int i = threadIdx.x; i < SEQS * WORDS * lane::SLICES * lane::AHEAD * 2; i += blockDim.x) {
    const int half = i % 2, j = i / 2 % lane::AHEAD, slice = i / (2 * lane::AHEAD) % lane::SLICES;
    const int word = i / (2 * lane::AHEAD * lane::SLICES) % WORDS, q = i / (2 * lane::AHEAD * lane::SLICES * WORDS);
    const int block = lane::slice_begin(slice, KB) + step * lane::AHEAD + j, row = q < x.last ? q : x.last;
    if (block >= lane::slice_begin(slice + 1, KB)) continue;
    codes[q][word][slice][2 * j + half] = lane::load16(
        x.codes + static_cast<long long>(row) * x.code_stride + word * x.word_stride + block * lane::QUANTUM + 16 * half);
    if (word == 0 && half == 0) scales[q][slice][j] = x.scales[static_cast<long long>(row) * x.scale_stride + block];
  }
}

template <int WORDS, int SEQS>
__global__ void __launch_bounds__(128, 4)
gemv_staged(const signed char* __restrict__ codes /* [rows, WORDS, K] */, const float* __restrict__ scales,
            const signed char* __restrict__ w /* [N, K] */, const half_t* __restrict__ ws /* [N, KB] */,
            float* __restrict__ y /* [rows, N] */, int y_pitch, int rows, int N, int KB) {
  SHARED_ALIGNED(16, uint4, staged_codes, [SEQS][WORDS][lane::SLICES][SLICE_WORDS]);
  SHARED(float, staged_scales, [SEQS][lane::SLICES][lane::AHEAD]);
  const int warps = blockDim.x / 32, slice = threadIdx.x % lane::SLICES, K = KB * lane::QUANTUM;
  const int begin = lane::slice_begin(slice, KB), end = lane::slice_begin(slice + 1, KB);
  const long long first = static_cast<long long>(blockIdx.y) * SEQS;
  const int last = rows - first < SEQS ? static_cast<int>(rows - first) - 1 : SEQS - 1;
  const lane::Activations memory{codes + first * WORDS * K, scales + first * KB, WORDS * K, K, KB, last};
  const lane::Activations x{reinterpret_cast<const signed char*>(&staged_codes[0][0][slice][0]), &staged_scales[0][slice][0],
                            WORDS * lane::SLICES * SLICE_WORDS * 16, lane::SLICES * SLICE_WORDS * 16,
                            lane::SLICES * lane::AHEAD, SEQS - 1};

  const int groups = (N + lane::ROWS_OF_WARP - 1) / lane::ROWS_OF_WARP, longest = (KB + lane::SLICES - 1) / lane::SLICES;
  // all warps of a block take every turn, also one whose rows lie past the last: they stage together
  for (int turn = blockIdx.x * warps; turn < groups; turn += gridDim.x * warps) {
    const int n = (turn + threadIdx.x / 32) * lane::ROWS_OF_WARP + threadIdx.x % 32 / lane::SLICES;
    const long long row = n < N ? n : N - 1;
    float acc[SEQS] = {};
    for (int step = 0; step * lane::AHEAD < longest; ++step) {
      const int b = begin + step * lane::AHEAD;
      const signed char* w_block = w + row * K + b * lane::QUANTUM;
      const half_t* ws_block = ws + row * KB + b;
      stage<WORDS, SEQS>(staged_codes, staged_scales, memory, step, KB);
      __syncthreads();
      if (b + lane::AHEAD <= end) lane::add_blocks<WORDS, lane::AHEAD>(acc, w_block, ws_block, x);
      else
        for (int j = 0; b + j < end; ++j)
          lane::add_blocks<WORDS, 1>(acc, w_block + j * lane::QUANTUM, ws_block + j, x.at(j));
      __syncthreads();
    }
    lane::store_slices(acc, y, static_cast<int>(first), rows, y_pitch, n, N);
  }
}
