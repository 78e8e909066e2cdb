// Attention of many tokens: prefill. A warp holds 8 tokens of one head and goes through scores, exponentials and values
// by itself; the warps of a block, G heads of one KV head over W / G runs of tokens, share the tiles of keys and values.
#include "attention.cuh"

constexpr int TOKENS = 8;       // of a warp
constexpr int SCORED = 32 / TOKENS;  // positions whose scores a warp sums at once
constexpr int ROWS = 32;        // positions of a tile
constexpr int E_PITCH = CHUNK + 4;  // so that a warp stores scores of 4 positions and 8 tokens to different banks

template <int D, typename KV>
constexpr int STAGES = ROWS * D * sizeof(KV) <= 16384 ? 3 : 2;

// Scores of a warp's tokens against 4 positions of a tile: lane l starts with its leaf of position l / 8 and token l % 8,
// and ends with the score of the two (lane::warp_sum_items).
template <int D, typename KV, int PER>
__device__ inline void score_rows(float* e, const float (&q)[TOKENS][PER], const KV* rows, float scale) {
  const int l = threadIdx.x % 32;
  float s[1][32];
#pragma unroll
  for (int k = 0; k < SCORED; ++k) {
    float key[PER];
    load_staged<D>(key, rows + (l / TOKENS * D ^ k * D), l);
#pragma unroll
    for (int j = 0; j < TOKENS; ++j) s[0][k * TOKENS + j] = lane::owned_dot(q[j], key);
  }
  lane::warp_sum_items(s);
  e[l % TOKENS * E_PITCH + l / TOKENS] = s[0][0] * scale;
}

// A lane's dims of all tokens take the values of a tile: `sure` rows that every token sees, then those of which token j
// sees seen + j.
template <int D, typename KV, int PER>
__device__ inline void weigh_rows(float (&part)[TOKENS][PER], const float* e, const KV* rows, int sure, int count, int seen) {
  const int l = threadIdx.x % 32;
  int p = 0;
#pragma unroll 1
  for (; p + 4 <= sure; p += 4) {
    float weight[TOKENS][4];
#pragma unroll
    for (int j = 0; j < TOKENS; ++j) lane::load_owned(weight[j], e + j * E_PITCH + p);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float v[PER];
      load_staged<D>(v, rows + (p + i) * D, l);
#pragma unroll
      for (int j = 0; j < TOKENS; ++j)
#pragma unroll
        for (int d = 0; d < PER; ++d) part[j][d] = fmaf(weight[j][i], v[d], part[j][d]);
    }
  }
#pragma unroll 1
  for (; p < count; ++p) {
    float v[PER];
    load_staged<D>(v, rows + p * D, l);
#pragma unroll
    for (int j = 0; j < TOKENS; ++j) {
      if (p >= seen + j) continue;
      const float weight = e[j * E_PITCH + p];
#pragma unroll
      for (int d = 0; d < PER; ++d) part[j][d] = fmaf(weight, v[d], part[j][d]);
    }
  }
}

// grid: x query heads of a KV head by G, then KV heads, sequences, token tiles (long contexts beside short ones); z blocks
// along the context (1: the output is written here, and holds the chunks so far). 12 warps share an SM
template <int D, int W, typename KV>
__global__ void __launch_bounds__(32 * W, 12 / W)
attention_prefill(const float* queries /* [T, B, HQ D] */, int q_pitch,
                  const KV* __restrict__ keys /* [slots, HKV, context, D] */,
                  const KV* __restrict__ values /* [slots, HKV, context, D] */,
                  const int* __restrict__ slot /* [B], -1: none */,
                  const int* __restrict__ position /* [B], of the first token */,
                  const int* __restrict__ length /* [B], <= T */, float* out /* [T, B, HQ D], for z = 1 */, int out_pitch,
                  float* __restrict__ parts /* [T, B, HQ, chunks, D] */,
                  float* __restrict__ summaries /* [T, B, HQ, chunks, 2] */, int B, int G, int HQ, int HKV, int context,
                  int chunks, float scale) {
  // the next launch is not admitted yet: its blocks would crowd on the SMs that are left first, and run unevenly
  lane::await_launches_before();
  constexpr int PER = lane::Head<D>::PER;
  DYNAMIC_SHARED_ALIGNED(128, KV, shared);
  KV* const ring = lane::kept(shared);
  // the warp as one value of all lanes: the compiler then knows that they branch alike, and moves shuffles among products
  const int w = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 32, 0), l = threadIdx.x % 32;
  float* const e = reinterpret_cast<float*>(ring + STAGES<D, KV> * ROWS * D) + w * TOKENS * E_PITCH;
  const int groups = HQ / HKV / G, tiles = static_cast<int>(gridDim.x) / (groups * HKV * B);
  const int kv = blockIdx.x / groups % HKV, b = blockIdx.x / groups / HKV % B, order = blockIdx.x / groups / HKV / B;
  // the first half of the blocks takes the long contexts, longest first, the second half the short ones, shortest first
  const int longer = (tiles + 1) / 2, tile = W / G * TOKENS;
  const int begin = (order < longer ? tiles - 1 - order : order - longer) * tile;
  const int place = slot[b], start = position[b];
  if ((place < 0) | (begin >= length[b]) | (start < 0)) return;  // not one wait for each
  const int last = start + (begin + tile < length[b] ? begin + tile : length[b]) - 1;
  const int t_all = begin + w / G * TOKENS, left = length[b] - t_all, tokens = left < 0 ? 0 : left < TOKENS ? left : TOKENS;
  const int standing_all = start + t_all, h = kv * (HQ / HKV) + blockIdx.x % groups * G + w % G;
  const long long home = (static_cast<long long>(place) * HKV + kv) * context * D;
  Stream<D, KV, ROWS, STAGES<D, KV>, W> stream{ring, keys + home, values + home, last, static_cast<int>(blockIdx.z),
                                            static_cast<int>(gridDim.z)};

  Summary all{0.0f, 0.0f};  // of token l
  for (int c = blockIdx.z; c * CHUNK <= last; c += gridDim.z) {
    // per token addresses are made anew for each chunk: kept, they would not fit the registers
    const int t = lane::opaque(t_all), standing = lane::opaque(standing_all);
    // what this warp's last token sees of what the block's last token sees
    const int most = seen_of(last, c), own = tokens ? seen_of(standing + tokens - 1, c) : 0, sure = tokens ? seen_of(standing, c) : 0;
    {
      float q[TOKENS][PER];
      const long long step = static_cast<long long>(B) * q_pitch;
      const float* const mine = queries + b * static_cast<long long>(q_pitch) + h * D + l * PER;
#pragma unroll
      for (int j = 0; j < TOKENS; ++j) {
        // a token behind the end repeats the last one: it is computed and not stored
        const int token = t + (j ^ l % TOKENS);
        lane::load_owned(q[j], mine + (token < length[b] ? token : length[b] - 1) * step);
      }
      for (int p = 0; p < most; p += ROWS) {
        const KV* const keys_here = stream.take();
#pragma unroll 2
        for (int i = 0; i < ROWS; i += SCORED)
          if (p + i < most) score_rows<D>(e + p + i, q, keys_here + i * D, scale);
      }
    }
    __syncwarp();
    Summary mine{0.0f, 0.0f};
#pragma unroll 2
    for (int j = 0; j < tokens; ++j) {
      const Summary found = exponentiate(e + j * E_PITCH, seen_of(standing + j, c));
      if (l == j) mine = found;
    }
    float part[TOKENS][PER];
#pragma unroll
    for (int j = 0; j < TOKENS; ++j)
#pragma unroll
      for (int d = 0; d < PER; ++d) part[j][d] = 0.0f;
    for (int p = 0; p < most; p += ROWS) {
      const KV* const values_here = stream.take();
      const int count = own - p < ROWS ? own - p : ROWS;
      weigh_rows<D>(part, e + p, values_here, sure - p < count ? sure - p : count, count, standing + 1 - c * CHUNK - p);
    }
    Rescale by{0.0f, 0.0f};
    if (c == 0) all = mine;
    else if (l < tokens && seen_of(standing + l, c) > 0) by = take_chunk(all, mine);

#pragma unroll
    for (int j = 0; j < TOKENS; ++j) {
      const Rescale here{__shfl_sync(0xFFFFFFFFu, by.all, j), __shfl_sync(0xFFFFFFFFu, by.chunk, j)};
      const float sum = __shfl_sync(0xFFFFFFFFu, all.sum, j);
      // a token that sees nothing of this chunk takes nothing from it
      if (j >= tokens || standing + j < c * CHUNK) continue;
      const long long row = static_cast<long long>(t + j) * B + b;
      if (gridDim.z > 1) {
        const long long at = (row * HQ + h) * chunks + c;
        lane::store_owned(parts + at * D + l * PER, part[j]);
        if (l == j) summaries[at * 2] = mine.top, summaries[at * 2 + 1] = mine.sum;
        continue;
      }
      float* const total = out + row * out_pitch + h * D + l * PER;
      float y[PER];
      if (c) lane::load_owned(y, total);
#pragma unroll
      for (int d = 0; d < PER; ++d) y[d] = c ? rescaled(y[d], part[j][d], here) : part[j][d];
      if (standing + j < (c + 1) * CHUNK) lane::Divisor(sum).divide(y);
      lane::store_owned(total, y);
    }
  }
}
