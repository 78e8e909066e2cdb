// The chunks that blocks of attention and attention_prefill left, one query head after the other.
#include "attention.cuh"

// A warp adds the chunks of its row ascending: of few chunks for several dims a lane, of LONG contexts 32 chunks at a time
// for one dim a lane, so that more warps have more loads on the way.
template <int D, bool LONG>
__global__ void __launch_bounds__(128)
attention_combine(const float* __restrict__ parts /* [T, B, HQ, chunks, D] */,
                  const float* __restrict__ summaries /* [T, B, HQ, chunks, 2] */,
                  const int* __restrict__ slot /* [B], -1: none */, const int* __restrict__ position /* [B] */,
                  const int* __restrict__ length /* [B], <= T */, float* __restrict__ out /* [T, B, HQ D] */,
                  int out_pitch, int B, int HQ, int chunks) {
  lane::overlap_launches();
  constexpr int OWN = LONG || D == 32 ? 1 : D == 64 ? 2 : 4;  // dims of a lane
  constexpr int SLICES = D / 32 / OWN, AT_ONCE = 32 / OWN;
  const int b = blockIdx.x % B, t = blockIdx.x / B, w = blockIdx.y * (blockDim.x / 32) + threadIdx.x / 32, h = w / SLICES;
  if (h >= HQ || slot[b] < 0 || t >= length[b]) return;
  const long long row = blockIdx.x, at = (row * HQ + h) * chunks;
  const int l = threadIdx.x % 32, dim = (w % SLICES * 32 + l) * OWN, count = (position[b] + t) / CHUNK + 1;
  float top = -lane::from_bits(INFINITE), sum = 0.0f, total[OWN];
  for (int first = 0; first < count; first += AT_ONCE) {
    const int many = count - first < AT_ONCE ? count - first : AT_ONCE;
    float part[AT_ONCE][OWN];
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i)
      if (i < many) lane::load_owned(part[i], parts + (at + first + i) * D + dim);
    // lane l takes chunk first + l: its maximum, and that of all chunks up to it
    const long long mine = (at + first + (l < many ? l : 0)) * 2;
    const Summary chunk{summaries[mine], summaries[mine + 1]};
    float now = chunk.top;
#pragma unroll
    for (int distance = 1; distance < AT_ONCE; distance *= 2) {
      const float ahead = __shfl_up_sync(0xFFFFFFFFu, now, distance);
      if (l >= distance) now = lane::maximum(ahead, now);
    }
    now = lane::maximum(top, now);
    const float ahead = __shfl_up_sync(0xFFFFFFFFu, now, 1), before = l ? ahead : top;
    const Rescale by{lane::exp(before - now), lane::exp(chunk.top - now)};
    const float weight = chunk.sum * by.chunk;
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
      if (i >= many) break;
      const Rescale here{__shfl_sync(0xFFFFFFFFu, by.all, i), __shfl_sync(0xFFFFFFFFu, by.chunk, i)};
      const float more = __shfl_sync(0xFFFFFFFFu, weight, i), alone = __shfl_sync(0xFFFFFFFFu, chunk.sum, i);
      const bool begins = first + i == 0;
      sum = begins ? alone : fmaf(sum, here.all, more);
#pragma unroll
      for (int d = 0; d < OWN; ++d) total[d] = begins ? part[i][d] : rescaled(total[d], part[i][d], here);
    }
    top = __shfl_sync(0xFFFFFFFFu, now, many - 1);
  }
  lane::Divisor(sum).divide(total);
  lane::store_owned(out + row * out_pitch + h * D + dim, total);
}
