// Speculation, decided on the device: pack drafts behind the current token, accept what greedy decoding would have
// said, pick the hidden row to draft from. Nothing is rolled back: conv ring and KV cache are indexed by position, and
// the recurrent state is committed by replaying accepted rows (delta_rule.cu).
#include "device.cuh"

constexpr int LIVE = 0;        // the flags are those of greedy.cu
constexpr int CACHE_FULL = 3;

// Rows of a verify: the current token, then the drafts. A sequence near its end has fewer rows, so that it ends exactly
// where plain decoding does; a flagged or finished one has none.
__global__ void __launch_bounds__(128)
speculation_pack(const int* __restrict__ current /* [B] */, const int* __restrict__ drafts /* [T - 1, B] */,
                 const int* __restrict__ flags /* [B] */, const int* __restrict__ position /* [B] */,
                 const int* __restrict__ end /* [B], positions a sequence may fill */,
                 int* __restrict__ tokens /* [T, B] */,
                 int* __restrict__ length /* [B] */, int B, int T) {
  lane::overlap_launches();
  const int b = blockIdx.x * blockDim.x + threadIdx.x;
  if (b >= B) return;
  const int left = flags[b] == LIVE ? end[b] - position[b] : 0;
  length[b] = left < 0 ? 0 : left < T ? left : T;
  for (int t = 0; t < T; ++t) tokens[t * B + b] = t == 0 ? current[b] : drafts[(t - 1) * B + b];
}

// Walks the verified rows as plain decoding would: each pick is stored behind its position, and the walk goes on while
// the next row's token is that pick. A flagged pick freezes the sequence where plain decoding would have.
// length 0: the sequence keeps nothing; below 0: it takes no part, and nothing of it changes.
__global__ void __launch_bounds__(128)
speculation_accept(const int* __restrict__ tokens /* [T, B], the rows */, const int* __restrict__ picks /* [T, B] */,
                   const int* __restrict__ pick_flags /* [T, B] */, const int* __restrict__ length /* [B] */,
                   int* __restrict__ current /* [B] */, int* __restrict__ flags /* [B] */,
                   int* __restrict__ position /* [B] */,
                   int* __restrict__ history /* [B, limit + 1] */, int history_pitch,
                   int* __restrict__ accepted /* [T, B] */,
                   int* __restrict__ began /* [B], position before */, int* __restrict__ pending /* [B], rows kept */,
                   int* __restrict__ taken /* [B], rows kept, or null */, int B, int T, int limit) {
  lane::overlap_launches();
  const int b = blockIdx.x * blockDim.x + threadIdx.x;
  if (b >= B || length[b] < 0) return;
  int kept = 0, at = position[b];
  began[b] = at;
  for (int t = 0; t < T && t < length[b]; ++t) {
    const int row = t * B + b;
    if (t > 0 && tokens[row] != current[b]) break;
    current[b] = picks[row];
    flags[b] = pick_flags[row];
    if (flags[b] != LIVE) break;
    kept = t + 1;
    accepted[row] = picks[row];
    history[static_cast<long long>(b) * history_pitch + at + 1] = picks[row];
    if (at + 1 < limit) {
      ++at;
    } else {
      flags[b] = CACHE_FULL;
      break;
    }
  }
  position[b] = at;
  pending[b] = kept;
  if (taken != nullptr) taken[b] = kept;
}

// One row of each sequence: row count[b] - 1 of a chunk, such as the hidden state of the last accepted token. A
// sequence that took none keeps what it had.
__global__ void __launch_bounds__(128)
pick_rows(const float* __restrict__ x /* [T, B, K] */, int x_pitch, const int* __restrict__ count /* [B] */,
          float* __restrict__ y /* [B, K] */, int y_pitch, int B, int K) {
  lane::overlap_launches();
  const int b = blockIdx.x, k = blockIdx.y * blockDim.x + threadIdx.x;
  if (k >= K || count[b] <= 0) return;
  const long long row = static_cast<long long>(count[b] - 1) * B + b;
  y[static_cast<long long>(b) * y_pitch + k] = x[row * x_pitch + k];
}
