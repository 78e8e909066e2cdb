// The gated delta rule, token by token: S = alpha S; d = beta (v - S k); S += d k^T; o = S q / sqrt(D).
//
// A warp owns ROWS rows of one head's state in registers for the whole chunk: one load and one store of the state a
// launch. A lane owns D / 32 neighbours of a row, so that each row is one 16-byte load a lane, and ROWS independent
// loads are in flight. Each sum over a row ends in 32 / ROWS lanes, which hold what belongs to that row alone.
// At position 0 the state is zero and is not read: a slot that is entered again is clean.
//
// The state is stored after the token that `replay` counts: after the last one in decode and prefill, after an earlier
// one as a checkpoint, or never. Speculation moves no state back: a verify stores nothing, and once its rows are
// accepted or not, the accepted ones run again and are stored. Same recurrence, same bits.
#include "head.cuh"

constexpr int WARPS = 4;  // of a block

// Blocks that may come while the launch ahead still runs. A later one would only ask for its rows twice.
constexpr int EARLY = 512;

// Blocks that a multiprocessor must hold at least; said for the staged form, which is short of warps anyway, and for wide
// heads, so that no compiler spills their state to fit one more (NVRTC 13.0 did on sm_80 and sm_100a).
template <int D, bool STAGED>
constexpr int RESIDENT = STAGED || D > 128 ? 1 : 0;

// what a lane needs of one token; v is that of the row whose sums it gets
template <int PER>
struct Token {
  float q[PER], k[PER], v, alpha, beta;
};

// the decay of ROWS rows, and what they hold of k: the lane's part of each sum
template <int ROWS, int PER>
__device__ inline void decay(float (&S)[ROWS][PER], const Token<PER>& token, float (&held)[ROWS]) {
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
#pragma unroll
    for (int i = 0; i < PER; ++i) S[r][i] = token.alpha * S[r][i];
    held[r] = lane::owned_dot(S[r], token.k);
  }
}

// d of the row whose sum this lane has is `learned`; every row learns, and is read by q: the lane's part of each sum
template <int ROWS, int PER, typename ROW>
__device__ inline void learn(float (&S)[ROWS][PER], const Token<PER>& token, float learned, float (&read)[ROWS],
                             ROW row_at) {
  float d[ROWS];
  lane::warp_share(learned, d, row_at);
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
#pragma unroll
    for (int i = 0; i < PER; ++i) S[r][i] = fmaf(d[r], token.k[i], S[r][i]);
    read[r] = lane::owned_dot(S[r], token.q);
  }
}

template <typename STATE, int ROWS, int PER>
__device__ inline void round_state(float (&S)[ROWS][PER]) {
#pragma unroll
  for (int r = 0; r < ROWS; ++r)
#pragma unroll
    for (int i = 0; i < PER; ++i) S[r][i] = lane::rounded<STATE>(S[r][i]);
}

// Of a few tokens what a block needs: its head's q and k, the values of its rows, and the gates.
template <int D, int ROWS>
struct Stage {
  static constexpr int TOKENS = D < 256 ? 16 : 8;  // two stages are at most 36 KB
  float q[TOKENS][D], k[TOKENS][D], v[TOKENS][WARPS * ROWS], alpha[TOKENS], beta[TOKENS];
};

// Copies the tokens that exist, a warp a token. `head` is q of the first; k and the values lie behind it.
template <int D, int ROWS>
__device__ inline void copy_stage(Stage<D, ROWS>& stage, const float* head, int k_behind, int v_behind, long long stride,
                                  const float* alpha, const float* beta, long long gate_stride, int tokens) {
  const int l = threadIdx.x % 32;
#pragma unroll
  for (int t = threadIdx.x / 32; t < Stage<D, ROWS>::TOKENS; t += WARPS) {
    if (t >= tokens) break;
    const float* from = head + t * stride;
#pragma unroll
    for (int i = l * 4; i < D; i += 128) {
      lane::cp_async16(&stage.q[t][i], from + i);
      lane::cp_async16(&stage.k[t][i], from + k_behind + i);
    }
    if (l * 4 < WARPS * ROWS) lane::cp_async16(&stage.v[t][l * 4], from + v_behind + l * 4);
  }
  if (threadIdx.x < tokens) {
    lane::cp_async4(&stage.alpha[threadIdx.x], alpha + threadIdx.x * gate_stride);
    lane::cp_async4(&stage.beta[threadIdx.x], beta + threadIdx.x * gate_stride);
  }
}

// STAGED: for chunks of many tokens. The warps of a block share one head, whose tokens lie in shared memory before they
// are needed, and the output of a token is summed together with what the next one finds, in one pass through the warp.
// ONE: for passes of one token, with neither a loop nor what it steps by: the registers hold more warps.
template <int D, typename STATE, int ROWS, bool STAGED, bool ONE>
__global__ void __launch_bounds__(32 * WARPS, RESIDENT<D, STAGED>)
delta_rule(const float* __restrict__ qkv /* [T, B, 2 HK D + HV D], q and k normed */, int qkv_pitch,
           const float* __restrict__ alpha /* [T, B, HV] */, const float* __restrict__ beta /* [T, B, HV] */,
           STATE* __restrict__ state /* [slots, HV, D, D] */, const int* __restrict__ slot /* [B], -1: none */,
           const int* __restrict__ position /* [B], of the first token */,
           const int* __restrict__ length /* [B], <= T */,
           const int* __restrict__ replay /* [B], tokens before the state is stored; -1: all */,
           float* __restrict__ o /* [T, B, HV D] */, int o_pitch, int B, int HK, int HV, float scale) {
  constexpr int PER = lane::Head<D>::PER, GROUPS = D / ROWS, LANES = 32 / ROWS;  // warps a head, lanes a sum
  static_assert(D % ROWS == 0, "delta_rule: a warp owns whole rows, and the rows of a head split evenly");
  static_assert(!STAGED || GROUPS % WARPS == 0, "delta_rule: a block that stages its tokens holds one head");
  const int unit = blockIdx.x * WARPS + threadIdx.x / 32, l = threadIdx.x % 32, own = l / LANES;
  const int b = blockIdx.z, key_head = unit / GROUPS, h = blockIdx.y * HK + key_head, first = unit % GROUPS * ROWS;
  if (key_head >= HK || slot[b] < 0) return;
  STATE* home = state + ((static_cast<long long>(slot[b]) * HV + h) * D + first) * D;
  if constexpr (STAGED) {
    // blocks of the next launch would take places unevenly, and these run for long
    lane::await_launches_before();
  } else {
    // which sequence has which slot no launch writes, so the rows may be on their way before the launch ahead has ended
    lane::admit_next_launch();
    if ((blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x < EARLY)
      for (int i = l * 128; i < ROWS * D * static_cast<int>(sizeof(STATE)); i += 32 * 128)
        lane::prefetch(reinterpret_cast<const char*>(home) + i);
    lane::await_launches_before();
  }
  // all of them are asked for before the first is needed
  const int tokens = length[b], replayed = replay[b];
  const bool fresh = position[b] == 0;
  if (tokens == 0) return;
  const int count = ONE ? 1 : tokens, stored_after = replayed < 0 ? count : replayed;

  // Place r of a lane holds row row_at(r). In the staged form place 0 is the lane's own row, so that sums need no
  // selection; in the other a warp loads whole rows, as the memory likes it.
  const auto row_at = [=](int r) { return STAGED ? lane::scattered<ROWS>(r, l) : r; };
  float S[ROWS][PER];
  home += l * PER;
  const auto load_rows = [&] {
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      if (!fresh) lane::load_owned<true>(S[r], home + row_at(r) * D);
      if (fresh)
#pragma unroll
        for (int i = 0; i < PER; ++i) S[r][i] = 0.0f;
    }
  };
  const auto store_rows = [&] {
#pragma unroll
    for (int r = 0; r < ROWS; ++r) lane::store_owned<true>(home + row_at(r) * D, S[r]);
  };

  const int key = HK * D, value = 2 * HK * D + (h - key_head) * D;  // how far behind its q a head's k and v lie
  const long long stride = static_cast<long long>(B) * qkv_pitch, gate_stride = static_cast<long long>(B) * HV;
  const long long o_stride = static_cast<long long>(B) * o_pitch;
  const float* head = qkv + static_cast<long long>(b) * qkv_pitch + key_head * D;
  alpha += static_cast<long long>(b) * HV + h, beta += static_cast<long long>(b) * HV + h;
  o += static_cast<long long>(b) * o_pitch + h * D + first + own;

  if constexpr (!STAGED) {
    Token<PER> token;
    const auto load_token = [&](int t) {
      const float* row = head + t * stride;
      lane::load_owned(token.q, row + l * PER);
      lane::load_owned(token.k, row + key + l * PER);
      token.v = row[value + first + own], token.alpha = alpha[t * gate_stride], token.beta = beta[t * gate_stride];
    };
    // the first token ahead of the loop, so that it is on its way with the state; of one token the state goes first
    if constexpr (!ONE) load_token(0);
    load_rows();
    if constexpr (ONE) load_token(0);
    for (int t = 0;;) {
      float held[ROWS], read[ROWS];
      decay(S, token, held);
      learn(S, token, token.beta * (token.v - lane::warp_sum_owned<false>(held)), read, row_at);
      if (ONE && stored_after == 1) store_rows();
      const float out = lane::warp_sum_owned<false>(read);
      if (l % LANES == 0) o[t * o_stride] = out * scale;
      if (++t == stored_after && !ONE) store_rows();
      if (t == count) break;
      round_state<STATE>(S);
      load_token(t);
    }
    return;
  }

  constexpr int TOKENS = Stage<D, ROWS>::TOKENS;
  SHARED_ALIGNED(16, unsigned char, memory, [STAGED ? 2 * sizeof(Stage<D, ROWS>) : 16]);
  Stage<D, ROWS>* stages = reinterpret_cast<Stage<D, ROWS>*>(memory);
  const int block_first = first / (WARPS * ROWS) * (WARPS * ROWS);
  const auto copy = [&](int t) {
    if (t < count)
      copy_stage(stages[t / TOKENS % 2], head + t * stride, key, value + block_first, stride, alpha + t * gate_stride,
                 beta + t * gate_stride, gate_stride, count - t < TOKENS ? count - t : TOKENS);
    lane::cp_async_commit();
  };
  load_rows();
  float read[ROWS] = {};  // of the token before
  copy(0);
  for (int t = 0; t < count;) {
    lane::cp_async_wait<0>();
    __syncthreads();
    const Stage<D, ROWS>& stage = stages[t / TOKENS % 2];
    copy(t + TOKENS);
    const int end = count - t < TOKENS ? count : t + TOKENS;
    for (const int start = t; t < end;) {
      const int stop = t < stored_after && stored_after < end ? stored_after : end;
#pragma unroll 4
      for (; t < stop; ++t) {
        Token<PER> token;
        lane::load_owned(token.q, stage.q[t - start] + l * PER);
        lane::load_owned(token.k, stage.k[t - start] + l * PER);
        token.v = stage.v[t - start][first - block_first + own];
        token.alpha = stage.alpha[t - start], token.beta = stage.beta[t - start];
        float held[ROWS];
        decay(S, token, held);
        const float sum = lane::warp_sum_scattered(held, read);
        if (t > 0 && l % LANES == LANES / 2) *o = sum * scale;
        if (t > 0) o += o_stride;
        learn(S, token, token.beta * (token.v - sum), read, row_at);
        round_state<STATE>(S);
      }
      if (t == stored_after) store_rows();
    }
  }
  lane::admit_next_launch();
  const float out = lane::warp_sum_owned<true>(read);
  if (l % LANES == 0) *o = out * scale;
}
