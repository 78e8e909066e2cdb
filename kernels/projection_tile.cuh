// Tensor-core tiles of a projection: the sums of products, activations in shared memory, and the ring of stages.
#pragma once
#include "projection_weights.cuh"

namespace lane {

constexpr int SHARED_BUDGET = 227 * 1024;  // bytes of shared memory that any block can have on any architecture

// element i of the products of one block, d on MAGIC, times its weight's scale: the rows of the fragment are weights, or its
// columns are
template <int WORDS, bool WEIGHTS_IN_ROWS>
__device__ inline float scaled_product(const int (&d)[WORDS][4], int i, const WeightScale (&s)[2]) {
  int dot[WORDS];
#pragma unroll
  for (int word = 0; word < WORDS; ++word) dot[word] = d[word][i];
  return scaled(dot, s[WEIGHTS_IN_ROWS ? i / 2 : i % 2]);
}

// acc += the products of one block
template <int WORDS, bool WEIGHTS_IN_ROWS>
__device__ inline void add_products(float (&acc)[4], const int (&d)[WORDS][4], const WeightScale (&s)[2], const float (&xs)[2]) {
#pragma unroll
  for (int i = 0; i < 4; ++i)
    acc[i] = fmaf(scaled_product<WORDS, WEIGHTS_IN_ROWS>(d, i, s), xs[WEIGHTS_IN_ROWS ? i % 2 : i / 2], acc[i]);
}

// A chunk of ROWS rows of activations in shared memory: codes [word][row], then scales [block][place of the row]. With
// TILES > 0 the scales that a lane needs of a warp's TILES fragments of 16 rows lie side by side.
template <int WORDS, int ROWS, int BLOCKS, int TILES = 0>
struct ActivationStage {
  using Codes = CodeRows<ROWS, BLOCKS * QUANTUM>;
  static constexpr int CODES = WORDS * Codes::BYTES, BYTES = CODES + ROWS * BLOCKS * 4;

  // rows first .. of `rows`, by THREADS threads
  template <int THREADS, class WALK>
  __device__ static void copy(unsigned char* to, const signed char* codes, const float* scales, int first, int rows, int KB,
                              const WALK& at, int thread) {
    const int row_bytes = WORDS * KB * QUANTUM;
    const float* from_scale = scales + widened(first, KB) + at.block;
    const signed char* from = codes + widened(first, row_bytes) + at.block * QUANTUM;
#pragma unroll
    for (int word = 0; word < WORDS; ++word)
      Codes::template copy<THREADS>(to + word * Codes::BYTES, from + word * (KB * QUANTUM), row_bytes, rows - first,
                                    at.count() * QUANTUM, thread);
    float* s = reinterpret_cast<float*>(to + CODES);
    constexpr int STEP = THREADS / BLOCKS;
    const int j = thread % BLOCKS;
    if (j >= at.count()) return;
#pragma unroll
    for (int i = 0; i < (ROWS + STEP - 1) / STEP; ++i) {
      const int r = thread / BLOCKS + i * STEP;
      if (ROWS % STEP != 0 && r >= ROWS) break;
      cp_async4(s + j * ROWS + place(r), from_scale + j + widened(first + r < rows ? r : rows - 1 - first, KB));
    }
  }

  __device__ static const unsigned char* word(const unsigned char* stage, int w) { return stage + w * Codes::BYTES; }

  __device__ static float scale(const unsigned char* stage, int r, int b) {
    return reinterpret_cast<const float*>(stage + CODES)[b * ROWS + place(r)];
  }

  // the scales of rows g and g + 8 of each fragment of the warp whose rows begin at `first`
  template <int COUNT>
  __device__ static void scales(float (&xs)[COUNT][2], const unsigned char* stage, int first, int b) {
    static_assert(COUNT == TILES && COUNT % 2 == 0, "scales: a lane loads those of two fragments at once");
    const auto* from = reinterpret_cast<const float*>(stage + CODES) + b * ROWS + place(first + threadIdx.x % 32 / 4);
#pragma unroll
    for (int m = 0; m < TILES; m += 2) {
      const uint4 four = load16(from + 2 * m);
      xs[m][0] = from_bits(four.x), xs[m][1] = from_bits(four.y);
      xs[m + 1][0] = from_bits(four.z), xs[m + 1][1] = from_bits(four.w);
    }
  }

 private:
  __device__ static int place(int r) {
    if constexpr (TILES == 0) return r;
    constexpr int WARP_ROWS = TILES > 0 ? 16 * TILES : 1;
    return r / WARP_ROWS * WARP_ROWS + r % 8 * (2 * TILES) + r % WARP_ROWS / 8;
  }
};

// Runs the chunks of a share of K through a ring of STAGES stages: copy(chunk, stage) issues copies, use(chunk, stage)
// multiplies. S - 1 chunks are issued first; then every turn issues the chunk S - 1 ahead before it waits for its own,
// with S - 1 groups pending while there was one to issue and none at the end.
template <int STAGES, int BLOCKS, class COPY, class USE>
__device__ inline void run_ring(Slices share, int KB, COPY copy, USE use) {
  static_assert(STAGES >= 1, "a ring has at least one stage");
  Walk<BLOCKS> ahead(share, KB), now = ahead;
  int filled = 0, used = 0;
  for (int turn = 1 - STAGES; !now.done(); ++turn) {
    const bool more = !ahead.done();
    if (more) {
      copy(ahead, filled);
      cp_async_commit();
      filled = filled + 1 < STAGES ? filled + 1 : 0;
      ahead.next();
    }
    if (turn < 0) continue;
    if (more) cp_async_wait<STAGES - 1>();
    else cp_async_wait<0>();
    __syncthreads();
    use(now, used);
    __syncthreads();
    used = used + 1 < STAGES ? used + 1 : 0;
    now.next();
  }
}

}  // namespace lane
