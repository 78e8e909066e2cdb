// Causal softmax attention in one order: positions in chunks of 256, each chunk with its own maximum, sum and weighted
// values, chunks combined ascending. A block holds Q queries that share every key and value row it reads: G heads of
// one KV head, over Q / G tokens of one sequence. One kernel is all forms: a block that walks every chunk, for decode
// and for tiles of a prefill, or blocks along z that leave their chunks to attention_combine.
#include "functions.cuh"
#include "head.cuh"

constexpr int CHUNK = 256;
constexpr int THREADS = 256;
constexpr int WARPS = THREADS / 32;
constexpr float LARGEST = 3.4028234663852886e38f;
constexpr unsigned NOT_A_NUMBER = 0x7fc00000u, INFINITE = 0x7f800000u;

static_assert(CHUNK == 32 * 8, "attention: the chunk sum is one tree of 8 positions a lane");

// What a chunk, or the chunks so far, say of one query: maximum and sum of exponentials; the outputs lie beside it.
struct Summary {
  float top, sum;
};

// how many positions of chunk c a query sees that stands at `position`
__device__ inline int seen_of(int position, int c) {
  const int seen = position + 1 - c * CHUNK;
  return seen < 0 ? 0 : seen > CHUNK ? CHUNK : seen;
}

// Scores of all queries against the first `most` positions of a chunk, position-major in `e`.
template <int D, int Q, typename KV, int PER>
__device__ inline void score_chunk(float (*e)[Q], const float (&q)[Q][PER], const KV* __restrict__ keys, int most,
                                   float scale) {
  const int l = threadIdx.x % 32;
  for (int p = threadIdx.x / 32; p < most; p += WARPS) {
    float k[PER], s[Q];
    lane::load_owned(k, keys + static_cast<long long>(p) * D + l * PER);
#pragma unroll
    for (int i = 0; i < Q; ++i) s[i] = lane::owned_dot(q[i], k);
    lane::warp_sum(s);
#pragma unroll
    for (int i = 0; i < Q; ++i)
      if (l == i) e[p][i] = s[i] * scale;
  }
  __syncthreads();
}

// Scores become exponentials, a warp a query. A score that is not finite makes the summary NaN, and with it the output.
template <int Q>
__device__ inline void exponentiate(float (*e)[Q], Summary* summary, const int* standing, int c) {
  const int l = threadIdx.x % 32;
  for (int i = threadIdx.x / 32; i < Q; i += WARPS) {
    const int seen = seen_of(standing[i], c);
    const int end = seen < l * 8 + 8 ? seen : l * 8 + 8;
    float top = -lane::from_bits(INFINITE);
    for (int p = l * 8; p < end; ++p) {
      const float score = e[p][i];
      top = lane::maximum(top, fabsf(score) <= LARGEST ? score : lane::from_bits(NOT_A_NUMBER));
    }
    top = lane::warp_max_nan(top);
    float sum = 0.0f;
    for (int p = l * 8; p < end; ++p) {
      const float weight = lane::exp(e[p][i] - top);
      sum = sum + weight;
      e[p][i] = weight;
    }
    sum = lane::warp_sum(sum);
    if (l == 0) summary[i] = Summary{top, sum};
  }
  __syncthreads();
}

// Weighted values of the chunk: a thread owns one dim of queries own, own + SHARES, ...
template <int D, int Q, typename KV, int MINE>
__device__ inline void weigh_chunk(float (&acc)[MINE], const float (*e)[Q], const KV* __restrict__ values,
                                   const int* standing, int c, int most) {
  constexpr int SHARES = THREADS / D;
  const int dim = threadIdx.x % D, own = threadIdx.x / D;
  int seen[MINE];
#pragma unroll
  for (int m = 0; m < MINE; ++m) {
    acc[m] = 0.0f;
    seen[m] = own + m * SHARES < Q ? seen_of(standing[own + m * SHARES], c) : 0;
  }
  for (int p = 0; p < most; ++p) {
    const float v = lane::load(values + static_cast<long long>(p) * D + dim);
#pragma unroll
    for (int m = 0; m < MINE; ++m)
      if (p < seen[m]) acc[m] = fmaf(e[p][own + m * SHARES], v, acc[m]);
  }
}

// The chunks so far take one more: both sides are rescaled to the larger maximum.
template <int N>
__device__ inline void combine(Summary& all, float (&total)[N], Summary chunk, const float (&part)[N], bool first) {
  const float top = lane::maximum(all.top, chunk.top);
  const float a = lane::exp(all.top - top), b = lane::exp(chunk.top - top);
  all = first ? chunk : Summary{top, fmaf(all.sum, a, chunk.sum * b)};
#pragma unroll
  for (int i = 0; i < N; ++i) total[i] = first ? part[i] : fmaf(total[i], a, part[i] * b);
}

// grid: x query tiles * B, y groups of G query heads, z blocks along the context (1: the output is written here)
template <int D, int Q, typename KV>
__global__ void __launch_bounds__(THREADS, 1)
attention(const float* __restrict__ queries /* [T, B, HQ D] */, int q_pitch,
          const KV* __restrict__ keys /* [slots, HKV, context, D] */,
          const KV* __restrict__ values /* [slots, HKV, context, D] */,
          const int* __restrict__ slot /* [B], -1: none */,
          const int* __restrict__ position /* [B], of the first token */,
          const int* __restrict__ length /* [B], <= T */,
          float* __restrict__ out /* [T, B, HQ D], for z = 1 */, int out_pitch,
          float* __restrict__ parts /* [T, B, HQ, chunks, D] */,
          float* __restrict__ summaries /* [T, B, HQ, chunks, 2] */, int B, int G, int HQ, int HKV, int context,
          int chunks, float scale) {
  lane::overlap_launches();
  constexpr int PER = lane::Head<D>::PER, SHARES = THREADS / D, MINE = (Q + SHARES - 1) / SHARES;
  static_assert(Q <= 32, "attention: a lane stores the score of one query");
  SHARED(float, e, [CHUNK][Q]);
  SHARED(Summary, summary, [Q]);
  SHARED(int, standing, [Q]);
  const int tile = Q / G, b = blockIdx.x % B, t = blockIdx.x / B * tile, h = blockIdx.y * G;
  if (slot[b] < 0 || t >= length[b]) return;
  const int tokens = length[b] - t < tile ? length[b] - t : tile, last = position[b] + t + tokens - 1;
  const long long home = (static_cast<long long>(slot[b]) * HKV + h / (HQ / HKV)) * context * D;
  const bool split = gridDim.z > 1;

  float q[Q][PER];
#pragma unroll
  for (int i = 0; i < Q; ++i) {
    // a token behind the end repeats the last one: it is computed and not stored
    const long long row = static_cast<long long>(t + (i / G < tokens ? i / G : tokens - 1)) * B + b;
    lane::load_owned(q[i], queries + row * q_pitch + (h + i % G) * D + threadIdx.x % 32 * PER);
  }
  for (int i = threadIdx.x; i < Q; i += THREADS) standing[i] = i / G < tokens ? position[b] + t + i / G : last;
  __syncthreads();

  Summary all[MINE];
  float total[MINE][1];
  for (int c = blockIdx.z; c * CHUNK <= last; c += gridDim.z) {
    const int most = seen_of(last, c);
    const long long chunk = home + static_cast<long long>(c) * CHUNK * D;
    score_chunk<D>(e, q, keys + chunk, most, scale);
    exponentiate(e, summary, standing, c);
    float part[MINE];
    weigh_chunk<D>(part, e, values + chunk, standing, c, most);
#pragma unroll
    for (int m = 0; m < MINE; ++m) {
      const int i = threadIdx.x / D + m * SHARES;
      // a query that sees nothing of this chunk takes nothing from it
      if (i >= Q || i / G >= tokens || standing[i] < c * CHUNK) continue;
      if (!split) {
        combine(all[m], total[m], summary[i], {part[m]}, c == 0);
        continue;
      }
      const long long at = ((static_cast<long long>(t + i / G) * B + b) * HQ + h + i % G) * chunks + c;
      parts[at * D + threadIdx.x % D] = part[m];
      if (threadIdx.x % D == 0) summaries[at * 2] = summary[i].top, summaries[at * 2 + 1] = summary[i].sum;
    }
    __syncthreads();
  }
  if (split) return;
#pragma unroll
  for (int m = 0; m < MINE; ++m) {
    const int i = threadIdx.x / D + m * SHARES;
    if (i >= Q || i / G >= tokens) continue;
    const long long row = static_cast<long long>(t + i / G) * B + b;
    out[row * out_pitch + (h + i % G) * D + threadIdx.x % D] = total[m][0] / all[m].sum;
  }
}

// One warp a query head: adds the chunks of its row ascending, a lane owning D / 32 dims.
template <int D>
__global__ void __launch_bounds__(128)
attention_combine(const float* __restrict__ parts /* [T, B, HQ, chunks, D] */,
                  const float* __restrict__ summaries /* [T, B, HQ, chunks, 2] */,
                  const int* __restrict__ slot /* [B], -1: none */, const int* __restrict__ position /* [B] */,
                  const int* __restrict__ length /* [B], <= T */, float* __restrict__ out /* [T, B, HQ D] */,
                  int out_pitch, int B, int HQ, int chunks) {
  lane::overlap_launches();
  constexpr int PER = lane::Head<D>::PER;
  const int b = blockIdx.x % B, t = blockIdx.x / B, h = blockIdx.y * (blockDim.x / 32) + threadIdx.x / 32;
  if (h >= HQ || slot[b] < 0 || t >= length[b]) return;
  const long long row = blockIdx.x, at = (row * HQ + h) * chunks;
  const int l = threadIdx.x % 32;
  Summary all;
  float total[PER];
  for (int c = 0; c * CHUNK <= position[b] + t; ++c) {
    float part[PER];
    lane::load_owned(part, parts + (at + c) * D + l * PER);
    combine(all, total, Summary{summaries[(at + c) * 2], summaries[(at + c) * 2 + 1]}, part, c == 0);
  }
#pragma unroll
  for (int i = 0; i < PER; ++i) total[i] = total[i] / all.sum;
  lane::store_owned(out + row * out_pitch + h * D + l * PER, total);
}
