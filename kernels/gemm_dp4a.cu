// dp4a tile: 64 weight rows by 32 sequences in shared memory, a chunk of K at a time, 4 x 4 outputs a thread.
// Rows are padded by one 16-byte word, so that the rows which neighbouring threads read lie in different banks.
#include "projection.cuh"

template <int CHUNK>
struct Tile {
  static constexpr int THREADS = 128, N = 64, M = 32;  // weight rows, sequences
  static constexpr int OWNED_N = 4, OWNED_M = 4;       // outputs of a thread
  static constexpr int ACROSS_N = 16, ACROSS_M = 8;    // threads along each side; a thread owns every ACROSS-th row
  static constexpr int BLOCKS = CHUNK / lane::QUANTUM, WORDS16 = CHUNK / 16, PITCH = WORDS16 + 1;
  static_assert(CHUNK % lane::QUANTUM == 0,
                "gemm_dp4a: a K step is whole blocks of 32; the rest of a longer one would be staged and never multiplied");
  static_assert(ACROSS_N * ACROSS_M == THREADS && ACROSS_N * OWNED_N == N && ACROSS_M * OWNED_M == M,
                "gemm_dp4a: threads and outputs are a bijection; more threads would compute outputs twice");
};

// `count` blocks from `block` of ROWS rows, the first of them `first`; a row past the last reads the last again
template <int ROWS, class T>
__device__ inline void stage_codes(uint4 (&to)[ROWS][T::PITCH], const signed char* from, long long row_bytes, int first,
                                   int rows, int block, int count) {
  for (int i = threadIdx.x; i < ROWS * T::WORDS16; i += T::THREADS) {
    const int r = i / T::WORDS16, word = i % T::WORDS16, row = first + r < rows ? first + r : rows - 1;
    if (word < 2 * count) to[r][word] = lane::load16(from + row * row_bytes + block * lane::QUANTUM + 16 * word);
  }
}

template <int ROWS, class T, class SCALE>
__device__ inline void stage_scales(float (&to)[T::BLOCKS][ROWS], const SCALE* from, long long KB, int first, int rows,
                                    int block, int count) {
  for (int i = threadIdx.x; i < ROWS * T::BLOCKS; i += T::THREADS) {
    const int r = i % ROWS, j = i / ROWS, row = first + r < rows ? first + r : rows - 1;
    if (j < count) to[j][r] = lane::load(from + row * KB + block + j);
  }
}

// stores the sums of a thread and begins new ones
template <class T>
__device__ inline void store_sums(float (&total)[T::OWNED_N][T::OWNED_M], float* y, int plane, int rows, int m0, int pitch,
                                  int n0, int N) {
  const int tn = threadIdx.x % T::ACROSS_N, tm = threadIdx.x / T::ACROSS_N;
#pragma unroll
  for (int n = 0; n < T::OWNED_N; ++n)
#pragma unroll
    for (int m = 0; m < T::OWNED_M; ++m) {
      const int row = m0 + tm + m * T::ACROSS_M, column = n0 + tn + n * T::ACROSS_N;
      if (row < rows && column < N) *lane::output(y, plane, rows, row, pitch, column) = total[n][m];
      total[n][m] = 0.0f;
    }
}

// the products of one staged block go to the sums of a thread
template <int WORDS, class T>
__device__ inline void add_block(float (&acc)[T::OWNED_N][T::OWNED_M], const uint4 (&w_codes)[T::N][T::PITCH],
                                 const uint4 (&x_codes)[WORDS][T::M][T::PITCH], const float (&w_scales)[T::N],
                                 const float (&x_scales)[T::M], int b) {
  const int tn = threadIdx.x % T::ACROSS_N, tm = threadIdx.x / T::ACROSS_N;
  lane::Codes32 x[WORDS][T::OWNED_M];
#pragma unroll
  for (int m = 0; m < T::OWNED_M; ++m)
#pragma unroll
    for (int word = 0; word < WORDS; ++word) {
      const uint4* row = x_codes[word][tm + m * T::ACROSS_M];
      x[word][m] = {row[2 * b], row[2 * b + 1]};
    }
#pragma unroll
  for (int n = 0; n < T::OWNED_N; ++n) {
    const int row = tn + n * T::ACROSS_N;
    const lane::Codes32 code{w_codes[row][2 * b], w_codes[row][2 * b + 1]};
    const lane::WeightScale s = lane::weight_scale(w_scales[row]);
#pragma unroll
    for (int m = 0; m < T::OWNED_M; ++m) {
      int dot[WORDS];
#pragma unroll
      for (int word = 0; word < WORDS; ++word) dot[word] = lane::dot32(code, x[word][m]);
      acc[n][m] = fmaf(lane::scaled(dot, s), x_scales[tm + m * T::ACROSS_M], acc[n][m]);
    }
  }
}

template <int WORDS, int CHUNK>
__global__ void __launch_bounds__(128, 2)
gemm_dp4a(const signed char* __restrict__ codes /* [rows, WORDS, K] */, const float* __restrict__ scales,
          const signed char* __restrict__ w /* [N, K] */, const half_t* __restrict__ ws /* [N, KB] */,
          float* __restrict__ y /* [planes, rows, N] */, int y_pitch, int rows, int N, int KB) {
  using T = Tile<CHUNK>;
  SHARED_ALIGNED(16, uint4, w_codes, [T::N][T::PITCH]);
  SHARED_ALIGNED(16, uint4, x_codes, [WORDS][T::M][T::PITCH]);
  SHARED(float, w_scales, [T::BLOCKS][T::N]);
  SHARED(float, x_scales, [T::BLOCKS][T::M]);
  const int K = KB * lane::QUANTUM, m0 = blockIdx.z * T::M, tiles = (N + T::N - 1) / T::N;
  const lane::Slices share(blockIdx.y, gridDim.y);
  const bool planes = gridDim.y > 1;

  for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const int n0 = tile * T::N;
    float acc[T::OWNED_N][T::OWNED_M] = {}, total[T::OWNED_N][T::OWNED_M] = {};
    for (lane::Walk<T::BLOCKS> now(share, KB); !now.done(); now.next()) {
      const int count = now.count();
      stage_codes<T::N, T>(w_codes, w, K, n0, N, now.block, count);
#pragma unroll
      for (int word = 0; word < WORDS; ++word)
        stage_codes<T::M, T>(x_codes[word], codes + word * K, static_cast<long long>(WORDS) * K, m0, rows, now.block, count);
      stage_scales<T::N, T>(w_scales, ws, KB, n0, N, now.block, count);
      stage_scales<T::M, T>(x_scales, scales, KB, m0, rows, now.block, count);
      __syncthreads();
      for (int b = 0; b < count; ++b) add_block<WORDS, T>(acc, w_codes, x_codes, w_scales[b], x_scales[b], b);
      if (now.closes()) {
        lane::close_slice(acc, total);
        if (planes) store_sums<T>(total, y, now.slice, rows, m0, y_pitch, n0, N);
      }
      __syncthreads();
    }
    if (!planes) store_sums<T>(total, y, 0, rows, m0, y_pitch, n0, N);
  }
}
