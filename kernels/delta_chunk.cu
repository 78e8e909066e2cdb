// The gated delta rule over T tokens at once, in the WY form: products of keys, queries and state first, then one
// triangular solve for what each token learns, then outputs and state. Bounded: it re-associates the recurrence.
//
// A block owns ROWS rows of one head's state. With D(t, j) the decay from behind token j to token t and A(t) the decay
// of the incoming state, token t learns
//   c_t = beta_t (v_t - A(t) S k_t) - sum over j < t of beta_t D(t, j) (k_j . k_t) c_j
//   o_t = A(t) S q_t + sum over j <= t of D(t, j) (k_j . q_t) c_j
//   S' = A(last) S + sum over j of D(last, j) c_j k_j^T
// Log decays are summed in float64 and only their differences are exponentiated: a quotient of vanished products would
// be 0/0. A decay that float32 cannot tell from zero is a reset, behind which the sum begins anew.
#include "functions.cuh"
#include "head.cuh"

constexpr int THREADS = 128;
constexpr int ROWS = 32;           // state rows of a block, the first columns of its products
constexpr int DIMS = 16;           // dims of a head that are staged at a time
constexpr int ACROSS = 16;         // threads along the columns of a product
constexpr int DOWN = 8;            // and along its tokens
constexpr float VANISHED = -120.0f;

// What a block keeps in shared memory. `pairs` holds D(t, j) (k_j . q_t) at [t][j], and at [j][t + 1] what the solve
// needs.
template <int D, int T>
struct Work {
  float pairs[T][T + 1], learned[T][ROWS], state[ROWS][D + 1], keys[T][DIMS + 1], queries[T][DIMS + 1], beta[T];
  float kept[T];
  double sum[T];  // of g, from the last reset on
  int reset[T];   // the last token up to t that reset the state, or -1
};

template <typename WORK>
__device__ inline float decay(const WORK& work, int t, int j) {
  return work.reset[t] > j ? 0.0f : lane::exp(static_cast<float>(work.sum[t] - work.sum[j]));
}

// a thread a token, each sums for itself; `kept` is the decay of the incoming state to the token
template <typename WORK>
__device__ inline void sum_decays(WORK& work, const float* __restrict__ g, const float* __restrict__ beta,
                                  long long stride, int count) {
  for (int t = threadIdx.x; t < count; t += THREADS) work.learned[t][0] = g[t * stride];
  __syncthreads();
  for (int t = threadIdx.x; t < count; t += THREADS) {
    double sum = 0.0;
    int reset = -1;
    for (int j = 0; j <= t; ++j) {
      const float one = work.learned[j][0];
      sum = one < VANISHED ? 0.0 : sum + one;
      reset = one < VANISHED ? j : reset;
    }
    work.sum[t] = sum, work.reset[t] = reset;
    work.kept[t] = reset >= 0 ? 0.0f : lane::exp(static_cast<float>(sum));
    work.beta[t] = beta[t * stride];
  }
}

// DIMS dims of a head's rows; rows of tokens that do not exist are never used
__device__ inline void stage(float (*to)[DIMS + 1], const float* __restrict__ from, long long stride, int count) {
#pragma unroll 8
  for (int i = threadIdx.x; i < count * DIMS; i += THREADS) to[i / DIMS][i % DIMS] = from[i / DIMS * stride + i % DIMS];
}

// what tokens before `first` learned, subtracted from the COUNT tokens from there on: an equal part a thread and state row
template <int COUNT, typename WORK>
__device__ inline void subtract_learned(WORK& work, int first, int count) {
  constexpr int EACH = COUNT / (THREADS / ROWS);
  const int row = threadIdx.x % ROWS, t0 = first + threadIdx.x / ROWS * EACH;
  float rest[EACH];
#pragma unroll
  for (int e = 0; e < EACH; ++e) rest[e] = t0 + e < count ? work.learned[t0 + e][row] : 0.0f;
#pragma unroll 4
  for (int j = 0; j < first; ++j) {
    const float c = work.learned[j][row];
#pragma unroll
    for (int e = 0; e < EACH; ++e)
      if (t0 + e < count) rest[e] = fmaf(-work.pairs[j][t0 + e + 1], c, rest[e]);
  }
#pragma unroll
  for (int e = 0; e < EACH; ++e)
    if (t0 + e < count) work.learned[t0 + e][row] = rest[e];
}

// Forward substitution, up to 16 tokens at a time: all threads subtract what earlier ones learned, then a thread a state
// row solves these in registers. For each token j ascends from 0.
template <int T, typename WORK>
__device__ inline void solve(WORK& work, int count) {
  constexpr int SOLVED = T < 16 ? T : 16;
  for (int first = 0; first < count; first += SOLVED) {
    if constexpr (T > SOLVED) {
      if (first > 0) subtract_learned<SOLVED>(work, first, count);
      __syncthreads();
    }
    if (threadIdx.x < ROWS) {
      float own[SOLVED];
#pragma unroll
      for (int t = 0; t < SOLVED; ++t) own[t] = first + t < count ? work.learned[first + t][threadIdx.x] : 0.0f;
#pragma unroll
      for (int t = 1; t < SOLVED; ++t)
#pragma unroll
        for (int j = 0; j < t; ++j)
          if (first + t < count) own[t] = fmaf(-work.pairs[first + j][first + t + 1], own[j], own[t]);
#pragma unroll
      for (int t = 1; t < SOLVED; ++t)
        if (first + t < count) work.learned[first + t][threadIdx.x] = own[t];
    }
    __syncthreads();
  }
}

template <int D, int T, typename STATE>
__global__ void __launch_bounds__(THREADS, 1)
delta_chunk(const float* __restrict__ qkv /* [tokens, B, 2 HK D + HV D], q and k normed */, int qkv_pitch,
            const float* __restrict__ g /* [tokens, B, HV] */, const float* __restrict__ beta /* [tokens, B, HV] */,
            STATE* __restrict__ state /* [slots, HV, D, D] */, const int* __restrict__ slot /* [B], -1: none */,
            const int* __restrict__ position /* [B], of token 0 */, const int* __restrict__ length /* [B] */,
            float* __restrict__ o /* [tokens, B, HV D] */, int o_pitch, int first /* token of this chunk */, int B,
            int HK, int HV, float scale) {
  static_assert(T == 1 || T == 4 || T == 8 || T == 16 || T == 32 || T == 64, "delta_chunk: T is 1, 4, 8, 16, 32 or 64");
  static_assert(D % ROWS == 0 && D % DIMS == 0 && ROWS == 2 * ACROSS, "delta_chunk: a thread owns two state rows");
  static_assert(DIMS == ACROSS && ROWS % DOWN == 0, "delta_chunk: a thread updates one dim of a few state rows");
  constexpr int NT = (T + DOWN - 1) / DOWN, NC = 2 + (T + ACROSS - 1) / ACROSS;
  DYNAMIC_SHARED(unsigned char, memory);
  Work<D, T>& work = *reinterpret_cast<Work<D, T>*>(memory);
  const int b = blockIdx.y, h = blockIdx.x, row0 = blockIdx.z * ROWS;
  const int left = length[b] - first, count = left < T ? left : T;
  if (slot[b] < 0 || count <= 0) return;
  const long long start = static_cast<long long>(first) * B + b, stride = static_cast<long long>(B) * qkv_pitch;
  const float* query = qkv + start * qkv_pitch + h % HK * D;
  const float* key = query + HK * D;
  const float* value = qkv + start * qkv_pitch + 2 * HK * D + h * D + row0;
  STATE* home = state + ((static_cast<long long>(slot[b]) * HV + h) * D + row0) * D;
  const bool fresh = position[b] + first == 0;

#pragma unroll 8
  for (int i = threadIdx.x; i < ROWS * D; i += THREADS) work.state[i / D][i % D] = fresh ? 0.0f : lane::load(home + i);
  sum_decays(work, g + start * HV + h, beta + start * HV + h, static_cast<long long>(B) * HV, count);

  // products of every token's key and query with state rows tx, tx + ACROSS and with keys tx, tx + ACROSS, ...
  const int tx = threadIdx.x % ACROSS, ty = threadIdx.x / ACROSS;
  float of_key[NT][NC] = {}, of_query[NT][NC] = {};
  for (int d0 = 0; d0 < D; d0 += DIMS) {
    __syncthreads();
    stage(work.keys, key + d0, stride, count);
    stage(work.queries, query + d0, stride, count);
    __syncthreads();
#pragma unroll 4
    for (int d = 0; d < DIMS; ++d) {
      float column[NC];
#pragma unroll
      for (int c = 0; c < NC; ++c) {
        const int j = tx + (c - 2) * ACROSS;
        column[c] = c < 2 ? work.state[tx + c * ACROSS][d0 + d] : j < T ? work.keys[j][d] : 0.0f;
      }
#pragma unroll
      for (int n = 0; n < NT; ++n) {
        const int t = ty + n * DOWN;
        if (t >= T) continue;
        const float k = work.keys[t][d], q = work.queries[t][d];
#pragma unroll
        for (int c = 0; c < NC; ++c) {
          of_key[n][c] = fmaf(k, column[c], of_key[n][c]);
          of_query[n][c] = fmaf(q, column[c], of_query[n][c]);
        }
      }
    }
  }

#pragma unroll
  for (int n = 0; n < NT; ++n) {
    const int t = ty + n * DOWN;
    if (t >= count) continue;
#pragma unroll
    for (int c = 0; c < NC; ++c) {
      if (c < 2) {
        const int i = tx + c * ACROSS;
        work.learned[t][i] = work.beta[t] * (value[t * stride + i] - work.kept[t] * of_key[n][c]);
        continue;
      }
      const int j = tx + (c - 2) * ACROSS;
      if (j <= t) work.pairs[t][j] = of_query[n][c];
      if (j < t) work.pairs[j][t + 1] = of_key[n][c];
    }
  }
  __syncthreads();
  for (int t = threadIdx.x / 32; t < count; t += THREADS / 32) {
    for (int j = threadIdx.x % 32; j < t; j += 32) {
      const float kept = decay(work, t, j);
      work.pairs[t][j] = kept * work.pairs[t][j];
      work.pairs[j][t + 1] = work.beta[t] * (kept * work.pairs[j][t + 1]);
    }
  }
  __syncthreads();

  solve<T>(work, count);

  float out[NT][2] = {};
#pragma unroll
  for (int n = 0; n < NT; ++n) {
    const int t = ty + n * DOWN;
#pragma unroll
    for (int c = 0; c < 2; ++c)
      if (t < count) out[n][c] = work.kept[t] * of_query[n][c];
  }
#pragma unroll 2
  for (int j = 0; j < count; ++j) {
    const float learned[2] = {work.learned[j][tx], work.learned[j][tx + ACROSS]};
#pragma unroll
    for (int n = 0; n < NT; ++n) {
      const int t = ty + n * DOWN;
      if (t < j || t >= count) continue;
      const float pair = work.pairs[t][j];
#pragma unroll
      for (int c = 0; c < 2; ++c) out[n][c] = fmaf(pair, learned[c], out[n][c]);
    }
  }
#pragma unroll
  for (int n = 0; n < NT; ++n) {
    const int t = ty + n * DOWN;
#pragma unroll
    for (int c = 0; c < 2; ++c)
      if (t < count) o[(start + static_cast<long long>(t) * B) * o_pitch + h * D + row0 + tx + c * ACROSS] = out[n][c] * scale;
  }
  __syncthreads();

  for (int i = threadIdx.x; i < count * ROWS; i += THREADS) {
    const int j = i / ROWS;
    work.learned[j][i % ROWS] = decay(work, count - 1, j) * work.learned[j][i % ROWS];
  }
  for (int d0 = 0; d0 < D; d0 += DIMS) {
    __syncthreads();
    stage(work.keys, key + d0, stride, count);
    __syncthreads();
    // one dim of a few rows a thread, so that lanes store neighbours
    const int d = tx, row = ty * (ROWS / DOWN);
    float sum[ROWS / DOWN];
#pragma unroll
    for (int r = 0; r < ROWS / DOWN; ++r) sum[r] = work.kept[count - 1] * work.state[row + r][d0 + d];
#pragma unroll 4
    for (int j = 0; j < count; ++j) {
      const float k = work.keys[j][d];
#pragma unroll
      for (int r = 0; r < ROWS / DOWN; ++r) sum[r] = fmaf(work.learned[j][row + r], k, sum[r]);
    }
#pragma unroll
    for (int r = 0; r < ROWS / DOWN; ++r) lane::store(home + (row + r) * D + d0 + d, sum[r]);
  }
}
