// Attention of a few queries: decode and verify. A block holds Q queries that share every key and value row it reads: G
// heads of one KV head, over Q / G tokens of one sequence. Blocks along z share the context and leave each chunk to
// attention_combine; one alone combines its chunks itself; and a cluster with a block a chunk combines them in shared memory.
#include "attention.cuh"
#include "hopper.cuh"

// so that a warp stores scores of 8 positions and 4 queries to different banks
constexpr int E_PITCH = CHUNK + 8;

// Blocks of four warps share an SM, four of them at best: two stages at least, three where they are small, keep 200 KB on
// the way. A block of eight warps has its SM to itself, and a chunk's keys on the way at once.
template <int D, typename KV, int WARPS>
struct Ring {
  static constexpr int ROWS = GROUP * WARPS;  // positions of a tile: a warp scores 8
  static constexpr int TILE = ROWS * D * static_cast<int>(sizeof(KV)), MOST = 2 * CHUNK / ROWS, FIT = 196608 / TILE;
  // four warps divide the dims of a wide head: each reads keys and values of its own
  static constexpr bool OWN = D / 2 >= 32 * WARPS;
  static constexpr int STAGES = WARPS > 4 ? (FIT < MOST ? FIT : MOST) : TILE <= 16384 ? 3 : 2;
};

// blocks that share an SM, for which there are registers
template <int Q, typename KV, int WARPS>
constexpr int BLOCKS = WARPS > 4 ? 1 : Q > 6 ? 2 : sizeof(KV) == 4 ? 3 : 4;

// Queries of a lane's registers: the first A, a power of two, then the rest, one too, each run in the order of the lane, so
// that of the sums over a warp every lane ends with those that it stores (lane::warp_sum_items).
template <int Q>
struct Order {
  static constexpr int LANES = 32 / GROUP;  // of a position
  static constexpr int A = Q >= 8 ? 8 : Q >= 4 ? 4 : Q >= 2 ? 2 : 1, R = Q - A;
  static_assert((R & (R - 1)) == 0 && R < A, "attention: queries of a block are a power of two, or two of them");

  __device__ static int at(int i, int l) { return i < A ? i ^ l % LANES * A / LANES : A + (i - A ^ l % LANES * R / LANES); }
};

// stores the sums of COUNT queries, rows of e, that a lane is left with; where they are few, several lanes have the same
template <int COUNT, int N>
__device__ inline void store_scores(float (*e)[E_PITCH], int p, const float (&s)[1][N], float scale) {
  constexpr int LANES = 32 / GROUP;
  const int l = threadIdx.x % 32;
  if (COUNT < LANES && l % (LANES / COUNT)) return;
#pragma unroll
  for (int k = 0; k < (COUNT < LANES ? 1 : COUNT / LANES); ++k) e[l % LANES * COUNT / LANES + k][p + l / LANES] = s[0][k] * scale;
}

// Scores of all queries against GROUP rows: lane l starts with its leaf of another position and another query than its
// neighbours.
template <int D, int Q, typename KV, int PER>
__device__ inline void score_rows(float (*e)[E_PITCH], int p, const float (&q)[Q][PER], const KV* rows, float scale) {
  constexpr int A = Order<Q>::A, R = Order<Q>::R, LANES = Order<Q>::LANES;
  const int l = threadIdx.x % 32;
  float s[1][GROUP * A], rest[1][GROUP * (R ? R : 1)];
#pragma unroll
  for (int k = 0; k < GROUP; ++k) {
    float key[PER];
    load_staged<D>(key, rows + (l / LANES * D ^ k * D), l);
#pragma unroll
    for (int i = 0; i < A; ++i) s[0][k * A + i] = lane::owned_dot(q[i], key);
#pragma unroll
    for (int i = 0; i < R; ++i) rest[0][k * R + i] = lane::owned_dot(q[A + i], key);
  }
  lane::warp_sum_items(s);
  store_scores<A>(e, p, s, scale);
  if constexpr (R > 0) {
    lane::warp_sum_items(rest);
    store_scores<R>(e + A, p, rest, scale);
  }
}

// A thread's two dims of its queries, rows of e that lie SHARES apart, take the values of a tile: `sure` rows that every query
// sees, then those of which query m sees `seen[m]` positions of the chunk.
template <int PITCH, int SHARES, typename KV, int MINE>
__device__ inline void weigh_tile(float (&part)[MINE][2], const float (*e)[E_PITCH], const KV* own, int first, int sure,
                                  int rows, const int (&seen)[MINE]) {
  int p = 0;
#pragma unroll 4
  for (; p + 4 <= sure; p += 4) {
    float weight[MINE][4];
#pragma unroll
    for (int m = 0; m < MINE; ++m) lane::load_owned(weight[m], &e[m * SHARES][first + p]);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float v[2];
      lane::load_owned(v, own + (p + j) * PITCH);
#pragma unroll
      for (int m = 0; m < MINE; ++m)
#pragma unroll
        for (int d = 0; d < 2; ++d) part[m][d] = fmaf(weight[m][j], v[d], part[m][d]);
    }
  }
#pragma unroll 1
  for (; p < rows; ++p) {
    float v[2];
    lane::load_owned(v, own + p * PITCH);
#pragma unroll
    for (int m = 0; m < MINE; ++m) {
      if (first + p >= seen[m]) continue;
#pragma unroll
      for (int d = 0; d < 2; ++d) part[m][d] = fmaf(e[m * SHARES][first + p], v[d], part[m][d]);
    }
  }
}

// grid: x blocks of a cluster, query heads of a KV head by G, then token tiles, KV heads, sequences; z blocks along the
// context (1: the output is written here)
template <int D, int Q, typename KV, int WARPS, bool CLUSTER>
__global__ void __launch_bounds__(32 * WARPS, BLOCKS<Q, KV, WARPS>)
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
  SHARED_ALIGNED(16, float, e, [MINE * SHARES][E_PITCH]);  // queries, and rows that no query takes
  SHARED(Summary, summary, [Q]);
  SHARED(Rescale, rescale, [Q]);
  DYNAMIC_SHARED(KV, ring);
  // outputs so far, or of a cluster's chunk: there they lie where its tiles did
  float* const running = reinterpret_cast<float*>(ring + (CLUSTER ? 0 : STAGES * ROWS * D));  // [Q, D]
  const int beside = CLUSTER ? lane::cluster_blocks() : 1, groups = HQ / HKV / G, tile = Q / G;
  const int tiles = static_cast<int>(gridDim.x) / (beside * groups * HKV * B);
  const int x = blockIdx.x / beside, kv = x / groups / tiles % HKV, b = x / groups / tiles / HKV;
  const int t = x / groups % tiles * tile, h = kv * (HQ / HKV) + x % groups * G;
  if (slot[b] < 0 || t >= length[b]) return;
  const int tokens = length[b] - t < tile ? length[b] - t : tile, standing = position[b] + t, last = standing + tokens - 1;
  const long long home = (static_cast<long long>(slot[b]) * HKV + kv) * context * D;
  const int begin = CLUSTER ? lane::cluster_rank() : blockIdx.z, stride = CLUSTER ? beside : gridDim.z;
  const bool split = !CLUSTER && gridDim.z > 1;
  constexpr bool OWN = Ring<D, KV, WARPS>::OWN;
  using Tiles = Stream<D, KV, ROWS, STAGES, WARPS, OWN>;
  // the warp as one value of all lanes: the compiler then knows that they branch alike, and moves shuffles among products
  const int w = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 32, 0), l = threadIdx.x % 32;
  Tiles stream{ring + (OWN ? w * STAGES * Tiles::TILE : 0), keys + home, values + home, last, begin, stride, 0, 0, 0, false};
  stream.start();

  float q[Q][PER];
#pragma unroll
  for (int i = 0; i < Q; ++i) {
    // a token behind the end repeats the last one: it is computed and not stored
    const int query = Order<Q>::at(i, l), token = query / G < tokens ? query / G : tokens - 1;
    const long long row = static_cast<long long>(t + token) * B + b;
    lane::load_owned(q[i], queries + row * q_pitch + (h + query % G) * D + l * PER);
  }
  const int dim = threadIdx.x % (D / 2) * 2, own = threadIdx.x / (D / 2);
  const int first = w * GROUP, column = OWN ? dim % Tiles::SLICE : Row<D, KV>::at(dim);
  Summary all{0.0f, 0.0f};  // of query threadIdx.x, for z = 1
  for (int c = begin; c * CHUNK <= last; c += stride) {
    const int most = seen_of(last, c), sure = seen_of(standing, c);
    for (int p = 0; p < most; p += ROWS) {
      const KV* const tile_here = stream.take();
      score_rows<D>(e, p + first, q, tile_here + (OWN ? 0 : first) * D, scale);
    }
    __syncthreads();
    for (int i = w; i < Q; i += WARPS) {
      const int token = i / G < tokens ? i / G : tokens - 1;
      const Summary found = exponentiate(e[i], seen_of(standing + token, c));
      if (l == 0) summary[i] = found;
    }
    if constexpr (OWN) __syncthreads();  // elsewhere the next tile waits
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
        weigh_tile<OWN ? Tiles::SLICE : D, SHARES>(part, e + own, tile_here + column, p, sure - p < ROWS ? sure - p : ROWS,
                                                   most - p < ROWS ? most - p : ROWS, seen);
    }
    if (CLUSTER) {
      __syncthreads();  // all have done with the tiles
    } else if (!split) {
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
        for (int j = 0; j < 2; ++j) total[j] = CLUSTER || c == 0 ? part[m][j] : rescaled(total[j], part[m][j], rescale[i]);
      }
    }
    if constexpr (OWN && !CLUSTER) __syncthreads();  // before the next chunk's scores
  }
  if (split) return;
  if constexpr (CLUSTER) {
    __syncwarp();
    lane::cluster_barrier();
    // queries by turns: a block combines the chunks of all blocks
    for (int i = begin + own * beside; i < Q; i += SHARES * beside) {
      if (i / G >= tokens) continue;
      float total[2];
      Summary all{0.0f, 0.0f};
      for (int c = 0; c * CHUNK <= standing + i / G; ++c) {
        const Summary chunk = *lane::of_block(&summary[i], c);
        const float* const part = lane::of_block(running + i * D + dim, c);
        const float y[2] = {part[0], part[1]};
        const Rescale by = take_chunk(all, chunk);
        if (c == 0) all = chunk;
#pragma unroll
        for (int j = 0; j < 2; ++j) total[j] = c == 0 ? y[j] : rescaled(total[j], y[j], by);
      }
      lane::Divisor(all.sum).divide(total);
      lane::store_owned(out + (static_cast<long long>(t + i / G) * B + b) * out_pitch + (h + i % G) * D + dim, total);
    }
    __syncwarp();
    lane::cluster_barrier();  // no block ends while another reads from it
    return;
  }
  if (threadIdx.x < Q) summary[threadIdx.x] = all;
  __syncthreads();
#pragma unroll
  for (int m = 0; m < MINE; ++m) {
    const int i = own + m * SHARES;
    if (i >= Q || i / G >= tokens) continue;
    const long long row = static_cast<long long>(t + i / G) * B + b;
    const float* const total = running + i * D + dim;
    float y[2] = {total[0], total[1]};
    lane::Divisor(summary[i].sum).divide(y);
    lane::store_owned(out + row * out_pitch + (h + i % G) * D + dim, y);
  }
}
