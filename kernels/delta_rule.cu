// The gated delta rule, token by token: S = alpha S; d = beta (v - S k); S += d k^T; o = S q / sqrt(D).
//
// A warp owns ROWS rows of one head's state in registers for the whole chunk: one load and one store of the state a
// launch. A lane owns D / 32 neighbours of a row, so that each row is one 16-byte load a lane, and ROWS independent
// loads are in flight. At position 0 the state is zero and is not read: a slot that is entered again is clean.
//
// The state is stored after the token that `stored` counts: after the last one in decode and prefill, after an earlier
// one as a checkpoint, or never. Speculation moves no state back: a verify stores nothing, and once its rows are accepted
// or not, the accepted ones run again and are stored. Same recurrence, same bits.
#include "head.cuh"

template <int D, typename STATE, int ROWS, int PER>
__device__ inline void step(float (&S)[ROWS][PER], const float (&k)[PER], const float (&v)[ROWS], float alpha, float beta,
                            const float (&q)[PER], float (&o)[ROWS]) {
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

template <int D, typename STATE, int ROWS>
__global__ void __launch_bounds__(128)
delta_rule(const float* __restrict__ qkv /* [T, B, 2 HK D + HV D], q and k normed */, int qkv_pitch,
           const float* __restrict__ alpha /* [T, B, HV] */, const float* __restrict__ beta /* [T, B, HV] */,
           STATE* __restrict__ state /* [slots, HV, D, D] */, const int* __restrict__ slot /* [B], -1: none */,
           const int* __restrict__ position /* [B], of the first token */, const int* __restrict__ length /* [B], <= T */,
           const int* __restrict__ replay /* [B], tokens before the state is stored; -1: all */,
           float* __restrict__ o /* [T, B, HV D] */, int o_pitch, int B, int HK, int HV, float scale) {
  constexpr int PER = lane::Head<D>::PER;
  static_assert(D % ROWS == 0, "delta_rule: a warp owns whole rows, and the rows of a head split evenly");
  constexpr int GROUPS = D / ROWS;  // warps a head
  const int unit = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
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
    const float* head = qkv + row * qkv_pitch + h % HK * D + l * PER;
    float q[PER], k[PER], v[ROWS], out[ROWS];
    lane::load_owned(q, head);
    lane::load_owned(k, head + HK * D);
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
