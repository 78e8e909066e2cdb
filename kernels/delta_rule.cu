// The gated delta rule, token by token: S = alpha S; d = beta (v - S k); S += d k^T; o = S q / sqrt(D).
//
// A warp owns ROWS rows of one head's state in registers for the whole chunk: one load and one store of the state a
// launch. A lane owns D / 32 neighbours of a row, so that each row is one 16-byte load a lane, and ROWS independent
// loads are in flight. At position 0 the state is zero and is not read: a slot that is entered again is clean.
//
// The state is stored after the token that `stored` counts: after the last one in decode and prefill, after an earlier
// one as a checkpoint, or never. Speculation moves no state back: a verify stores nothing, and once its rows are
// accepted or not, the accepted ones run again and are stored. Same recurrence, same bits.
#include "head.cuh"

constexpr int WARPS = 4;
constexpr int TOKENS = 8;  // whose q and k the staged form holds in shared memory

template <int D, typename STATE, int ROWS, int PER>
__device__ inline void step(float (&S)[ROWS][PER], const float (&k)[PER], const float (&v)[ROWS], float alpha,
                            float beta, const float (&q)[PER], float (&o)[ROWS]) {
  float sum[ROWS];
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
#pragma unroll
    for (int i = 0; i < PER; ++i) S[r][i] = alpha * S[r][i];
    sum[r] = lane::owned_dot(S[r], k);
  }
  lane::warp_sum(sum);
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    const float d = beta * (v[r] - sum[r]);
#pragma unroll
    for (int i = 0; i < PER; ++i) S[r][i] = fmaf(d, k[i], S[r][i]);
    o[r] = lane::owned_dot(S[r], q);
  }
  lane::warp_sum(o);
#pragma unroll
  for (int r = 0; r < ROWS; ++r)
#pragma unroll
    for (int i = 0; i < PER; ++i) S[r][i] = lane::rounded<STATE>(S[r][i]);
}

// q and k of the head, for tokens t to t + TOKENS - 1 as far as they exist; every warp of the block reads them
template <int D>
__device__ inline void stage(float (*staged)[2][D], const float* __restrict__ head, int k_offset, long long stride,
                             int tokens) {
  __syncthreads();
  for (int i = threadIdx.x; i < tokens * 2 * D; i += 32 * WARPS) {
    const int token = i / (2 * D), which = i / D % 2;
    staged[token][which][i % D] = head[token * stride + which * k_offset + i % D];
  }
  __syncthreads();
}

// STAGED: the warps of a block share one head, and read its q and k from shared memory
template <int D, typename STATE, int ROWS, bool STAGED>
__global__ void __launch_bounds__(128)
delta_rule(const float* __restrict__ qkv /* [T, B, 2 HK D + HV D], q and k normed */, int qkv_pitch,
           const float* __restrict__ alpha /* [T, B, HV] */, const float* __restrict__ beta /* [T, B, HV] */,
           STATE* __restrict__ state /* [slots, HV, D, D] */, const int* __restrict__ slot /* [B], -1: none */,
           const int* __restrict__ position /* [B], of the first token */,
           const int* __restrict__ length /* [B], <= T */,
           const int* __restrict__ replay /* [B], tokens before the state is stored; -1: all */,
           float* __restrict__ o /* [T, B, HV D] */, int o_pitch, int B, int HK, int HV, float scale) {
  lane::overlap_launches();
  constexpr int PER = lane::Head<D>::PER;
  static_assert(D % ROWS == 0, "delta_rule: a warp owns whole rows, and the rows of a head split evenly");
  constexpr int GROUPS = D / ROWS;  // warps a head
  static_assert(!STAGED || GROUPS % WARPS == 0, "delta_rule: a block that stages q and k holds one head");
  SHARED(float, staged, [STAGED ? TOKENS : 1][2][STAGED ? D : 1]);
  const int unit = blockIdx.x * WARPS + threadIdx.x / 32;
  const int b = blockIdx.y, h = unit / GROUPS, first = unit % GROUPS * ROWS, l = threadIdx.x % 32;
  const int count = length[b];
  if (h >= HV || slot[b] < 0 || count == 0) return;
  const int stored_after = replay[b] < 0 ? count : replay[b];

  STATE* home = state + ((static_cast<long long>(slot[b]) * HV + h) * D + first) * D + l * PER;
  float S[ROWS][PER];
  const bool fresh = position[b] == 0;
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    if (!fresh) lane::load_owned(S[r], home + r * D);
    if (fresh)
#pragma unroll
      for (int i = 0; i < PER; ++i) S[r][i] = 0.0f;
  }

  for (int t = 0; t < count; ++t) {
    const long long row = static_cast<long long>(t) * B + b;
    const float* head = qkv + row * qkv_pitch + h % HK * D;
    float q[PER], k[PER], v[ROWS], out[ROWS];
    if constexpr (STAGED) {
      if (t % TOKENS == 0)
        stage<D>(staged, head, HK * D, static_cast<long long>(B) * qkv_pitch, count - t < TOKENS ? count - t : TOKENS);
      lane::load_owned(q, staged[t % TOKENS][0] + l * PER);
      lane::load_owned(k, staged[t % TOKENS][1] + l * PER);
    } else {
      lane::load_owned(q, head + l * PER);
      lane::load_owned(k, head + HK * D + l * PER);
    }
    const float* value = qkv + row * qkv_pitch + 2 * HK * D + h * D + first;
#pragma unroll
    for (int r = 0; r < ROWS; ++r) v[r] = value[r];
    step<D, STATE>(S, k, v, alpha[row * HV + h], beta[row * HV + h], q, out);
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
      if (l == r) o[row * o_pitch + h * D + first + r] = out[r] * scale;
    if (t + 1 == stored_after)
#pragma unroll
      for (int r = 0; r < ROWS; ++r) lane::store_owned(home + r * D, S[r]);
  }
}
