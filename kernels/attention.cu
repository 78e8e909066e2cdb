// Attention of a few queries: decode and verify. A block holds Q queries that share every key and value row it reads: G
// heads of one KV head, over Q / G tokens of one sequence. Blocks along z share the context and leave each chunk to
// attention_combine; one alone combines its chunks itself.
#include "attention.cuh"

// Blocks of four warps share an SM, four of them at best: two stages at least, three where they are small, keep 200 KB on
// the way. A block of eight warps has its SM to itself, and a chunk's keys on the way at once.
template <int D, typename KV, int WARPS>
struct Ring {
  static constexpr int ROWS = GROUP * WARPS;  // positions of a tile: a warp scores 8
  static constexpr int TILE = ROWS * D * static_cast<int>(sizeof(KV)), MOST = 2 * CHUNK / ROWS, FIT = 196608 / TILE;
  static constexpr int STAGES = WARPS > 4 ? (FIT < MOST ? FIT : MOST) : TILE <= 16384 ? 3 : 2;
};

// Queries of a lane's registers: the first A, a power of two, then the rest, one too, each run in the order of the lane, so
// that of the sums over a warp every lane ends with those that it stores (lane::warp_sum_items).
template <int Q>
struct Order {
  static constexpr int A = Q >= 8 ? 8 : Q >= 4 ? 4 : Q >= 2 ? 2 : 1, R = Q - A;
  static_assert((R & (R - 1)) == 0 && R < A, "attention: queries of a block are a power of two, or two of them");

  __device__ static int at(int i, int l) { return i < A ? i ^ l % 4 * A / 4 : A + (i - A ^ l % 4 * R / 4); }
};

// stores sums of N / 8 queries from the first on; where they are fewer than four, several lanes have the same
template <int N>
__device__ inline void store_scores(float (*e)[CHUNK], int first, int p, const float (&s)[1][N], float scale) {
  constexpr int COUNT = N / GROUP;
  const int l = threadIdx.x % 32;
  if (COUNT < 4 && l % (4 / COUNT)) return;
#pragma unroll
  for (int k = 0; k < (COUNT < 4 ? 1 : COUNT / 4); ++k) e[first + l % 4 * COUNT / 4 + k][p] = s[0][k] * scale;
}

// Scores of all queries against 8 positions of a tile, a warp's own: lane l starts with its leaf of another position and
// another query than its neighbours.
template <int D, int Q, typename KV, int PER>
__device__ inline void score_tile(float (*e)[CHUNK], const float (&q)[Q][PER], const KV* tile, int first, float scale) {
  constexpr int A = Order<Q>::A, R = Order<Q>::R;
  const int l = threadIdx.x % 32, own = threadIdx.x / 32 * GROUP, mine = l / 4;
  float s[1][GROUP * A], rest[1][GROUP * (R ? R : 1)];
#pragma unroll
  for (int k = 0; k < GROUP; ++k) {
    float key[PER];
    load_staged<D>(key, tile + own * D + (mine * D ^ k * D), l);
#pragma unroll
    for (int i = 0; i < A; ++i) s[0][k * A + i] = lane::owned_dot(q[i], key);
#pragma unroll
    for (int i = 0; i < R; ++i) rest[0][k * R + i] = lane::owned_dot(q[A + i], key);
  }
  lane::warp_sum_items(s);
  store_scores(e, 0, first + own + mine, s, scale);
  if constexpr (R > 0) {
    lane::warp_sum_items(rest);
    store_scores(e, A, first + own + mine, rest, scale);
  }
}

// A thread's two dims of its queries take the values of a tile: `sure` rows that every query sees,
// then those of which query m sees `seen[m]` positions of the chunk.
template <int D, typename KV, int MINE>
__device__ inline void weigh_tile(float (&part)[MINE][2], const float* const (&e)[MINE], const KV* tile, int first, int sure,
                                  int rows, const int (&seen)[MINE]) {
  const KV* own = tile + Row<D, KV>::at(threadIdx.x % (D / 2) * 2);
  int p = 0;
#pragma unroll 4
  for (; p + 4 <= sure; p += 4) {
    float weight[MINE][4];
#pragma unroll
    for (int m = 0; m < MINE; ++m) lane::load_owned(weight[m], e[m] + first + p);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float v[2];
      lane::load_owned(v, own + (p + j) * D);
#pragma unroll
      for (int m = 0; m < MINE; ++m)
#pragma unroll
        for (int d = 0; d < 2; ++d) part[m][d] = fmaf(weight[m][j], v[d], part[m][d]);
    }
  }
  for (; p < rows; ++p) {
    float v[2];
    lane::load_owned(v, own + p * D);
#pragma unroll
    for (int m = 0; m < MINE; ++m) {
      if (first + p >= seen[m]) continue;
#pragma unroll
      for (int d = 0; d < 2; ++d) part[m][d] = fmaf(e[m][first + p], v[d], part[m][d]);
    }
  }
}

// grid: x query heads of a KV head by G, then token tiles, KV heads, sequences; z blocks along the context (1: the output
// is written here)
template <int D, int Q, typename KV, int WARPS>
__global__ void __launch_bounds__(32 * WARPS, WARPS > 4 ? 1 : Q <= 6 ? 4 : 2)
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
  constexpr int ROWS = Ring<D, KV, WARPS>::ROWS, STAGES = Ring<D, KV, WARPS>::STAGES;
  constexpr int PER = lane::Head<D>::PER, SHARES = 32 * WARPS / (D / 2), MINE = (Q + SHARES - 1) / SHARES;
  SHARED_ALIGNED(16, float, e, [Q][CHUNK]);
  SHARED(Summary, summary, [Q]);
  SHARED(Rescale, rescale, [Q]);
  DYNAMIC_SHARED(KV, ring);
  float* const running = reinterpret_cast<float*>(ring + STAGES * ROWS * D);  // [Q, D], for z = 1
  const int groups = HQ / HKV / G, tiles = static_cast<int>(gridDim.x) / (groups * HKV * B), tile = Q / G;
  const int x = blockIdx.x / groups, kv = x / tiles % HKV, b = x / tiles / HKV;
  const int t = x % tiles * tile, h = kv * (HQ / HKV) + blockIdx.x % groups * G;
  if (slot[b] < 0 || t >= length[b]) return;
  const int tokens = length[b] - t < tile ? length[b] - t : tile, standing = position[b] + t, last = standing + tokens - 1;
  const long long home = (static_cast<long long>(slot[b]) * HKV + kv) * context * D;
  const bool split = gridDim.z > 1;
  Stream<D, KV, ROWS, STAGES, WARPS> stream{
      ring, keys + home, values + home, last, static_cast<int>(blockIdx.z), static_cast<int>(gridDim.z), 0, 0, 0, false};
  stream.start();

  float q[Q][PER];
#pragma unroll
  for (int i = 0; i < Q; ++i) {
    // a token behind the end repeats the last one: it is computed and not stored
    const int query = Order<Q>::at(i, threadIdx.x % 32), token = query / G < tokens ? query / G : tokens - 1;
    const long long row = static_cast<long long>(t + token) * B + b;
    lane::load_owned(q[i], queries + row * q_pitch + (h + query % G) * D + threadIdx.x % 32 * PER);
  }
  const int dim = threadIdx.x % (D / 2) * 2, own = threadIdx.x / (D / 2);
  const float* weights[MINE];
#pragma unroll
  for (int m = 0; m < MINE; ++m) weights[m] = e[own + m * SHARES < Q ? own + m * SHARES : Q - 1];
  Summary all{0.0f, 0.0f};  // of query threadIdx.x, for z = 1
  for (int c = blockIdx.z; c * CHUNK <= last; c += gridDim.z) {
    const int most = seen_of(last, c), sure = seen_of(standing, c);
    for (int p = 0; p < most; p += ROWS) score_tile<D>(e, q, stream.take(), p, scale);
    __syncthreads();
    for (int i = threadIdx.x / 32; i < Q; i += WARPS) {
      const int token = i / G < tokens ? i / G : tokens - 1;
      const Summary found = exponentiate(e[i], seen_of(standing + token, c));
      if (threadIdx.x % 32 == 0) summary[i] = found;
    }
    float part[MINE][2];
    int seen[MINE];
#pragma unroll
    for (int m = 0; m < MINE; ++m) {
      const int i = own + m * SHARES;
      part[m][0] = part[m][1] = 0.0f;
      // a query that is not there sees nothing
      seen[m] = i < Q && i / G < tokens ? seen_of(standing + i / G, c) : 0;
    }
    for (int p = 0; p < most; p += ROWS) {
      const KV* const tile_here = stream.take();
      if (own < Q)
        weigh_tile<D>(part, weights, tile_here, p, sure - p < ROWS ? sure - p : ROWS, most - p < ROWS ? most - p : ROWS, seen);
    }
    if (!split) {
      if (threadIdx.x < Q && seen_of(standing + (threadIdx.x / G < tokens ? threadIdx.x / G : 0), c) > 0) {
        if (c == 0) all = summary[threadIdx.x];
        else rescale[threadIdx.x] = take_chunk(all, summary[threadIdx.x]);
      }
      __syncthreads();
    }
#pragma unroll
    for (int m = 0; m < MINE; ++m) {
      const int i = own + m * SHARES;
      if (seen[m] == 0) continue;
      if (split) {
        const long long at = ((static_cast<long long>(t + i / G) * B + b) * HQ + h + i % G) * chunks + c;
        lane::store_owned(parts + at * D + dim, part[m]);
        if (dim == 0) summaries[at * 2] = summary[i].top, summaries[at * 2 + 1] = summary[i].sum;
      } else {
        float* const total = running + i * D + dim;
#pragma unroll
        for (int j = 0; j < 2; ++j) total[j] = c == 0 ? part[m][j] : rescaled(total[j], part[m][j], rescale[i]);
      }
    }
  }
  if (split) return;
  if (threadIdx.x < Q) summary[threadIdx.x] = all;
  __syncthreads();
#pragma unroll
  for (int m = 0; m < MINE; ++m) {
    const int i = own + m * SHARES;
    if (i >= Q || i / G >= tokens) continue;
    const long long row = static_cast<long long>(t + i / G) * B + b;
    const float* const total = running + i * D + dim;
    const float y[2] = {total[0] / summary[i].sum, total[1] / summary[i].sum};
    lane::store_owned(out + row * out_pitch + (h + i % G) * D + dim, y);
  }
}

// One warp a query head and 32 dims: adds the chunks of its row ascending, 32 of them at a time.
template <int D>
__global__ void __launch_bounds__(128)
attention_combine(const float* __restrict__ parts /* [T, B, HQ, chunks, D] */,
                  const float* __restrict__ summaries /* [T, B, HQ, chunks, 2] */,
                  const int* __restrict__ slot /* [B], -1: none */, const int* __restrict__ position /* [B] */,
                  const int* __restrict__ length /* [B], <= T */, float* __restrict__ out /* [T, B, HQ D] */,
                  int out_pitch, int B, int HQ, int chunks) {
  lane::overlap_launches();
  constexpr int SLICES = D / 32;
  const int b = blockIdx.x % B, t = blockIdx.x / B, w = blockIdx.y * (blockDim.x / 32) + threadIdx.x / 32, h = w / SLICES;
  if (h >= HQ || slot[b] < 0 || t >= length[b]) return;
  const long long row = blockIdx.x, at = (row * HQ + h) * chunks;
  const int l = threadIdx.x % 32, dim = w % SLICES * 32 + l, count = (position[b] + t) / CHUNK + 1;
  float top = -lane::from_bits(INFINITE), sum = 0.0f, total = 0.0f;
  for (int first = 0; first < count; first += 32) {
    const int many = count - first < 32 ? count - first : 32;
    float part[32];
#pragma unroll
    for (int i = 0; i < 32; ++i) part[i] = i < many ? parts[(at + first + i) * D + dim] : 0.0f;
    // lane l takes chunk first + l: its maximum, and that of all chunks up to it
    const long long mine = (at + first + (l < many ? l : 0)) * 2;
    const Summary chunk{summaries[mine], summaries[mine + 1]};
    float now = chunk.top;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const float ahead = __shfl_up_sync(0xFFFFFFFFu, now, distance);
      if (l >= distance) now = lane::maximum(ahead, now);
    }
    now = lane::maximum(top, now);
    const float ahead = __shfl_up_sync(0xFFFFFFFFu, now, 1), before = l ? ahead : top;
    const Rescale by{lane::exp(before - now), lane::exp(chunk.top - now)};
    const float weight = chunk.sum * by.chunk;
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      if (i >= many) break;
      const Rescale here{__shfl_sync(0xFFFFFFFFu, by.all, i), __shfl_sync(0xFFFFFFFFu, by.chunk, i)};
      const float more = __shfl_sync(0xFFFFFFFFu, weight, i), alone = __shfl_sync(0xFFFFFFFFu, chunk.sum, i);
      const bool begins = first + i == 0;
      sum = begins ? alone : fmaf(sum, here.all, more);
      total = begins ? part[i] : rescaled(total, part[i], here);
    }
    top = __shfl_sync(0xFFFFFFFFu, now, many - 1);
  }
  out[row * out_pitch + h * D + dim] = total / sum;
}
