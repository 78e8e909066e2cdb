// Causal depthwise convolution of 4 taps, silu, and the L2 norm of q and k heads.
//
// A warp owns one head of D channels of one sequence and walks SEGMENT tokens of its chunk; the last inputs stay in
// registers. The inputs before a segment are rows of the chunk, or what the ring kept of the chunk before.
// Per sequence and channel the ring keeps the last RING inputs, input of position p at p % RING: 3 are needed, and the
// spare ones keep the inputs that a rejected draft would have pushed out, so that speculation rolls nothing back here.
// Inputs before position 0 are zero and are never read, so a slot that is entered again needs no clearing.
#include "functions.cuh"
#include "head.cuh"

constexpr int TAPS = 4;
constexpr int RING = 8;
constexpr int SEGMENT = 8;  // tokens of a warp: a long chunk walked by one warp would leave most of the machine idle
constexpr float L2_EPS = 1e-6f;

static_assert(RING >= TAPS - 1 + 5, "conv: the ring must hold 3 inputs behind a verify of 5 rows");

template <int D>
__global__ void __launch_bounds__(128)
conv(const float* __restrict__ x /* [T, B, C] */, int x_pitch, const float* __restrict__ w /* [TAPS, C] */,
     float* __restrict__ ring /* [slots, RING, C] */, const int* __restrict__ slot /* [B], -1: none */,
     const int* __restrict__ position /* [B], of the first token */, const int* __restrict__ length /* [B], <= T */,
     float* __restrict__ y /* [T, B, C] */, int y_pitch, int B, int C, int normed_heads /* q and k heads */) {
  lane::overlap_launches();
  constexpr int PER = lane::Head<D>::PER;
  const int head = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
  const int b = blockIdx.y, count = length[b], begin = blockIdx.z * SEGMENT;
  if (head * D >= C || slot[b] < 0 || begin >= count) return;
  const int channel = head * D + threadIdx.x % 32 * PER, start = position[b];
  float* kept = ring + static_cast<long long>(slot[b]) * RING * C + channel;
  x += static_cast<long long>(b) * x_pitch + channel;
  y += static_cast<long long>(b) * y_pitch + channel;
  const long long x_stride = static_cast<long long>(B) * x_pitch, y_stride = static_cast<long long>(B) * y_pitch;

  float tap[TAPS][PER], past[TAPS][PER];  // past[j] is the input of token t - 3 + j
#pragma unroll
  for (int j = 0; j < TAPS; ++j) lane::load_owned(tap[j], w + static_cast<long long>(j) * C + channel);
#pragma unroll
  for (int j = 1; j < TAPS; ++j) {
    const int t = begin - TAPS + j;
    if (t >= 0) {
      lane::load_owned(past[j], x + t * x_stride);
    } else if (start + t >= 0) {
      lane::load_owned(past[j], kept + static_cast<long long>((start + t) % RING) * C);
    } else {
#pragma unroll
      for (int i = 0; i < PER; ++i) past[j][i] = 0.0f;
    }
  }

  float next[PER];  // the input of the token behind is on its way while a token is computed
  lane::load_owned(next, x + begin * x_stride);
  for (int t = begin; t < count && t < begin + SEGMENT; ++t) {
#pragma unroll
    for (int i = 0; i < PER; ++i) {
#pragma unroll
      for (int j = 0; j + 1 < TAPS; ++j) past[j][i] = past[j + 1][i];
      past[TAPS - 1][i] = next[i];
    }
    if (t + 1 < count) lane::load_owned(next, x + (t + 1) * x_stride);

    float out[PER];
#pragma unroll
    for (int i = 0; i < PER; ++i) {
      float acc = 0.0f;
#pragma unroll
      for (int j = 0; j < TAPS; ++j) acc = fmaf(tap[j][i], past[j][i], acc);
      out[i] = lane::silu(acc);
    }
    if (head < normed_heads) {
      const float root = lane::finite_root(lane::dot(out, out) + L2_EPS);
#pragma unroll
      for (int i = 0; i < PER; ++i) out[i] = out[i] / root;
    }
    lane::store_owned(y + t * y_stride, out);
  }

  // the warp that has read the ring writes it, whichever warp those tokens belong to
  if (begin > 0) return;
  for (int t = count > RING ? count - RING : 0; t < count; ++t) {
    lane::load_owned(past[0], x + t * x_stride);
    lane::store_owned(kept + static_cast<long long>((start + t) % RING) * C, past[0]);
  }
}
