// Attention of a few queries: decode and verify. A block holds Q queries that share every key and value row it reads: G
// heads of one KV head, over Q / G tokens of one sequence. Blocks along z share the context and leave each chunk to
// attention_combine; one alone combines its chunks itself, as do teams of warps that share it and take chunks by turns; and
// a cluster with a block a chunk combines them in shared memory.
#include "attention.cuh"
#include "hopper.cuh"

// so that a warp stores scores of 8 positions and 4 queries to different banks
constexpr int E_PITCH = CHUNK + 8;

constexpr int WARPS = 4;             // that share tiles
constexpr int ROWS = GROUP * WARPS;  // positions of a tile: a warp scores 8

// Four times so many warps share an SM at best: two stages, three where they are small, keep 200 KB on the way.
template <int D, typename KV>
constexpr int STAGES = ROWS * D * sizeof(KV) <= 16384 ? 3 : 2;

// four warps divide the dims of a wide head: each reads keys and values of its own
template <int D>
constexpr bool OWN_TILES = D / 2 >= 32 * WARPS;

// Of a block's queries, G heads of each token: i / G by a product, exact for so few.
struct Tokens {
  int G, inverse;

  __device__ explicit Tokens(int G) : G(G), inverse((256 + G - 1) / G) {}
  __device__ int of(int i) const { return i * inverse >> 8; }
  __device__ int head(int i) const { return i - of(i) * G; }
};

// blocks that share an SM, for which there are registers
template <int Q, typename KV>
constexpr int BLOCKS = Q > 6 ? 2 : sizeof(KV) == 4 ? 3 : 4;

// teams of four warps: a block of several takes the place of the blocks that would share an SM
template <int Q, typename KV, bool TEAMED>
constexpr int TEAMS = TEAMED ? BLOCKS<Q, KV> : 1;

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
  // row k ^ l / LANES, found from another that differs from it in one bit
  const KV* at[GROUP] = {rows + l / LANES * D};
#pragma unroll
  for (int k = 1; k < GROUP; ++k) at[k] = at[k & (k - 1)] + (l / LANES & k & -k ? -(k & -k) : k & -k) * D;
#pragma unroll
  for (int k = 0; k < GROUP; ++k) {
    float key[PER];
    load_staged<D>(key, at[k], l);
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

// COUNT values, which every query sees, for a thread's two dims of its queries; rows of e lie SHARES apart.
template <int COUNT, int PITCH, int SHARES, typename KV, int MINE>
__device__ inline void weigh_rows(float (&part)[MINE][2], const float (*e)[E_PITCH], const KV* own, int first) {
#pragma unroll
  for (int p = 0; p < COUNT; p += 4) {
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
}

// The same for a tile: `sure` rows that every query sees, then those of which query m sees `seen[m]` positions of the chunk.
template <int ROWS, int PITCH, int SHARES, typename KV, int MINE>
__device__ inline void weigh_tile(float (&part)[MINE][2], const float (*e)[E_PITCH], const KV* own, int first, int sure,
                                  int rows, const int (&seen)[MINE]) {
  if (sure >= ROWS) return weigh_rows<ROWS, PITCH, SHARES>(part, e, own, first);
  int p = 0;
#pragma unroll 1
  for (; p + 4 <= sure; p += 4) weigh_rows<4, PITCH, SHARES>(part, e, own + p * PITCH, first + p);
#pragma unroll 1
  for (; p < rows && p < ROWS; ++p) {
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
// context (1: the output is written here). TEAMED: a block has several teams of four warps
template <int D, int Q, typename KV, bool CLUSTER, bool TEAMED>
__global__ void __launch_bounds__(32 * WARPS * TEAMS<Q, KV, TEAMED>, BLOCKS<Q, KV> / TEAMS<Q, KV, TEAMED>)
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
  constexpr int PER = lane::Head<D>::PER, SHARES = 32 * WARPS / (D / 2), MINE = (Q + SHARES - 1) / SHARES;
  constexpr int COUNT = TEAMS<Q, KV, TEAMED>, DEPTH = STAGES<D, KV>;
  SHARED_ALIGNED(16, float, scores, [COUNT][MINE * SHARES][E_PITCH]);  // queries, and rows that no query takes
  SHARED(Summary, summaries_here, [COUNT][Q]);
  SHARED(Rescale, rescales, [COUNT][Q]);
  SHARED(Summary, so_far, [Q]);  // of all chunks that were taken
  SHARED(unsigned, taken, [1]);
  // copies arrive by 32 bytes of a line: where those straddle two lines, they are what all else waits for
  DYNAMIC_SHARED_ALIGNED(128, KV, rings);
  // the warp as one value of all lanes: the compiler then knows that they branch alike, and moves shuffles among products
  const int warp = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 32, 0), team = warp / WARPS, w = warp % WARPS;
  const int l = threadIdx.x % 32, thread = TEAMED ? threadIdx.x % (32 * WARPS) : threadIdx.x;
  float(*const e)[E_PITCH] = lane::kept(scores[team]);
  Summary* const summary = summaries_here[team];
  Rescale* const rescale = rescales[team];
  KV* const ring = lane::kept(rings + team * DEPTH * ROWS * D);
  // outputs so far, or of a cluster's chunk: there they lie where its tiles did
  float* const running = reinterpret_cast<float*>(rings + (CLUSTER ? 0 : COUNT * DEPTH * ROWS * D));  // [Q, D]
  const int beside = CLUSTER ? lane::cluster_blocks() : 1, groups = HQ / HKV / G, tile = Q / G;
  const int tiles = static_cast<int>(gridDim.x) / (beside * groups * HKV * B);
  const int x = blockIdx.x / beside, kv = x / groups / tiles % HKV, b = x / groups / tiles / HKV;
  const int t = x / groups % tiles * tile, h = kv * (HQ / HKV) + x % groups * G;
  const Tokens token(G);
  lane::overlap_launches();
  const int place = slot[b], left = length[b] - t, standing = position[b] + t;
  if ((place < 0) | (left <= 0) | (standing < 0)) return;  // not one wait for each
  const int tokens = left < tile ? left : tile, last = standing + tokens - 1;
  const long long home = (static_cast<long long>(place) * HKV + kv) * context * D;
  const int begin = CLUSTER ? lane::cluster_rank() : TEAMED ? team : blockIdx.z;
  const int stride = CLUSTER ? beside : TEAMED ? COUNT : gridDim.z;
  const bool split = !CLUSTER && !TEAMED && gridDim.z > 1;
  constexpr bool OWN = OWN_TILES<D>;
  using Tiles = Stream<D, KV, ROWS, DEPTH, WARPS, OWN, TEAMED>;
  Tiles stream{ring + (OWN ? w * DEPTH * Tiles::TILE : 0), keys + home, values + home, last, begin, stride};
  if constexpr (TEAMED) {
    if (threadIdx.x == 0) taken[0] = 0;
    __syncthreads();
  }

  float q[Q][PER];
#pragma unroll
  for (int i = 0; i < Q; ++i) {
    // a token behind the end repeats the last one: it is computed and not stored
    const int query = Order<Q>::at(i, l), shown = token.of(query) < tokens ? token.of(query) : tokens - 1;
    const long long row = static_cast<long long>(t + shown) * B + b;
    lane::load_owned(q[i], queries + row * q_pitch + (h + token.head(query)) * D + l * PER);
  }
  const int dim = thread % (D / 2) * 2, own = thread / (D / 2);
  const int first = w * GROUP, column = OWN ? dim % Tiles::SLICE : Row<D, KV>::at(dim);
  for (int c = begin; c * CHUNK <= last; c += stride) {
    const int most = seen_of(last, c), sure = seen_of(standing, c);
    for (int p = 0; p < most; p += ROWS) {
      const KV* const tile_here = stream.take();
      score_rows<D>(e, p + first, q, tile_here + (OWN ? 0 : first) * D, scale);
    }
    meet_team<WARPS, TEAMED>();
    for (int i = w; i < Q; i += WARPS) {
      const int shown = token.of(i) < tokens ? token.of(i) : tokens - 1;
      const Summary found = exponentiate(e[i], seen_of(standing + shown, c));
      if (l == 0) summary[i] = found;
    }
    if constexpr (OWN) meet_team<WARPS, TEAMED>();  // elsewhere the next tile waits
    float part[MINE][2];
    int seen[MINE];
#pragma unroll
    for (int m = 0; m < MINE; ++m) {
      const int i = own + m * SHARES;
      part[m][0] = part[m][1] = 0.0f;
      // a query that is not there sees nothing
      seen[m] = i < Q && token.of(i) < tokens ? seen_of(standing + token.of(i), c) : 0;
    }
    for (int p = 0; p < most; p += ROWS) {
      const KV* const tile_here = stream.take();
      if (own < Q)
        weigh_tile<ROWS, OWN ? Tiles::SLICE : D, SHARES>(part, e + own, tile_here + column, p, sure - p, most - p, seen);
    }
    if (CLUSTER) {
      __syncthreads();  // all have done with the tiles
    } else if (!split) {
      // teams take their chunks in the order of the context
      if (TEAMED && w == 0) lane::await_flag<false>(taken, c);
      const int i = lane::opaque(thread);
      if (i < Q && seen_of(standing + (token.of(i) < tokens ? token.of(i) : 0), c) > 0) {
        Summary all = summary[i];
        if (c > 0) all = so_far[i], rescale[i] = take_chunk(all, summary[i]);
        so_far[i] = all;
      }
      meet_team<WARPS, TEAMED>();
    }
    const int mine = lane::opaque(own);  // what follows from it is made anew for each chunk: kept, it would not fit
#pragma unroll
    for (int m = 0; m < MINE; ++m) {
      const int i = mine + m * SHARES;
      if (seen[m] == 0) continue;
      if (split) {
        const long long at = ((static_cast<long long>(t + token.of(i)) * B + b) * HQ + h + token.head(i)) * chunks + c;
        lane::store_owned(parts + at * D + dim, part[m]);
        if (dim == 0) summaries[at * 2] = summary[i].top, summaries[at * 2 + 1] = summary[i].sum;
      } else {
        float* const total = running + i * D + dim;
#pragma unroll
        for (int j = 0; j < 2; ++j) total[j] = CLUSTER || c == 0 ? part[m][j] : rescaled(total[j], part[m][j], rescale[i]);
      }
    }
    if constexpr ((OWN || TEAMED) && !CLUSTER) meet_team<WARPS, TEAMED>();  // before the next chunk's scores
    if (TEAMED && thread == 0) lane::raise_flag<false>(taken, c + 1);
  }
  if (split) return;
  if constexpr (CLUSTER) {
    __syncwarp();
    lane::cluster_barrier();
    // queries by turns: a block combines the chunks of all blocks
    for (int i = begin + own * beside; i < Q; i += SHARES * beside) {
      if (token.of(i) >= tokens) continue;
      float total[2];
      Summary all{0.0f, 0.0f};
      for (int c = 0; c * CHUNK <= standing + token.of(i); ++c) {
        const Summary chunk = *lane::of_block(&summary[i], c);
        const float* const part = lane::of_block(running + i * D + dim, c);
        const float y[2] = {part[0], part[1]};
        const Rescale by = take_chunk(all, chunk);
        if (c == 0) all = chunk;
#pragma unroll
        for (int j = 0; j < 2; ++j) total[j] = c == 0 ? y[j] : rescaled(total[j], y[j], by);
      }
      lane::Divisor(all.sum).divide(total);
      lane::store_owned(out + (static_cast<long long>(t + token.of(i)) * B + b) * out_pitch + (h + token.head(i)) * D + dim, total);
    }
    __syncwarp();
    lane::cluster_barrier();  // no block ends while another reads from it
    return;
  }
  if (TEAMED && last / CHUNK % COUNT != team) return;
#pragma unroll
  for (int m = 0; m < MINE; ++m) {
    const int i = own + m * SHARES;
    if (i >= Q || token.of(i) >= tokens) continue;
    const long long row = static_cast<long long>(t + token.of(i)) * B + b;
    const float* const total = running + i * D + dim;
    float y[2] = {total[0], total[1]};
    lane::Divisor(so_far[i].sum).divide(y);
    lane::store_owned(out + row * out_pitch + (h + token.head(i)) * D + dim, y);
  }
}
