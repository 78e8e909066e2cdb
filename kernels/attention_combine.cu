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
  const int place = slot[b], tokens = length[b], standing = position[b] + t;
  if ((h >= HQ) | (place < 0) | (t >= tokens) | (standing < 0)) return;  // not one wait for each
  const long long row = blockIdx.x, at = (row * HQ + h) * chunks;
  const int l = threadIdx.x % 32, dim = (w % SLICES * 32 + l) * OWN, count = standing / CHUNK + 1;
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

// Of very many chunks: a block has 32 dims of a head, and MANY chunks on the way while it goes through MANY. A thread finds
// the factors of a chunk, and the first warp does what must be done one chunk after the other.
constexpr int MANY = 256, AT_ONCE = 16;

// COUNT chunks for one dim, from shared memory: all are loaded before the first is added
template <int COUNT>
__device__ inline void take_chunks(float& total, float& sum, const float* part, const float (*factors)[4]) {
  float y[COUNT], f[COUNT][4];
#pragma unroll
  for (int i = 0; i < COUNT; ++i) y[i] = part[i * 32], lane::load_owned(f[i], factors[i]);
#pragma unroll
  for (int i = 0; i < COUNT; ++i) {
    total = rescaled(total, y[i], {f[i][0], f[i][1]});
    sum = fmaf(sum, f[i][0], f[i][2]);
  }
}

template <int D>
__global__ void __launch_bounds__(MANY)
attention_combine_far(const float* __restrict__ parts /* [T, B, HQ, chunks, D] */,
                      const float* __restrict__ summaries /* [T, B, HQ, chunks, 2] */,
                      const int* __restrict__ slot /* [B], -1: none */, const int* __restrict__ position /* [B] */,
                      const int* __restrict__ length /* [B], <= T */, float* __restrict__ out /* [T, B, HQ D] */,
                      int out_pitch, int B, int HQ, int chunks) {
  lane::overlap_launches();
  constexpr int SLICES = D / 32, PIECES = 32 / 4;  // pieces of 16 bytes of a slice
  SHARED_ALIGNED(16, float, factors, [MANY][4]);
  SHARED(float, tops, [MANY / 32]);
  DYNAMIC_SHARED(float, ring);  // [2, MANY, 32]
  const int b = blockIdx.x % B, t = blockIdx.x / B, h = blockIdx.y / SLICES, slice = blockIdx.y % SLICES * 32;
  const int place = slot[b], tokens = length[b], standing = position[b] + t;
  if ((place < 0) | (t >= tokens) | (standing < 0)) return;
  const int i = threadIdx.x, w = i / 32, l = i % 32, count = standing / CHUNK + 1;
  const long long row = blockIdx.x, at = (row * HQ + h) * chunks;
  const auto issue = [&](int first) {
    for (int c = i / PIECES; c < MANY && first + c < count; c += MANY / PIECES)
      lane::cp_async16(ring + (first / MANY % 2 * MANY + c) * 32 + i % PIECES * 4,
                       parts + (at + first + c) * D + slice + i % PIECES * 4);
    lane::cp_async_commit();
  };
  issue(0);
  const float lowest = -lane::from_bits(INFINITE);
  float top = lowest, sum = 0.0f, total = 0.0f;  // of the chunks before
  for (int first = 0; first < count; first += MANY) {
    Summary chunk{lowest, 0.0f};
    if (first + i < count) chunk = {summaries[(at + first + i) * 2], summaries[(at + first + i) * 2 + 1]};
    // the largest maximum up to each chunk: of its warp, then of the warps before
    float now = chunk.top;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const float ahead = __shfl_up_sync(0xFFFFFFFFu, now, distance);
      if (l >= distance) now = lane::maximum(ahead, now);
    }
    if (l == 31) tops[w] = now;
    __syncthreads();  // and the first warp has done with the chunks before
    issue(first + MANY);
    float before = top;
#pragma unroll
    for (int k = 0; k < MANY / 32; ++k) {
      if (k == w) before = top;
      top = lane::maximum(top, tops[k]);
    }
    now = lane::maximum(before, now);
    const float ahead = __shfl_up_sync(0xFFFFFFFFu, now, 1);
    const float by = lane::exp(chunk.top - now);
    *reinterpret_cast<float4*>(factors[i]) = make_float4(lane::exp((l ? ahead : before) - now), by, chunk.sum * by, 0.0f);
    lane::cp_async_wait<1>();
    __syncthreads();
    if (w > 0) continue;
    const float* const part = ring + first / MANY % 2 * MANY * 32 + l;
    const int many = count - first < MANY ? count - first : MANY;
    if (first == 0) total = part[0], sum = factors[0][2];
    int c = first == 0;
#pragma unroll 1
    for (; c + AT_ONCE <= many; c += AT_ONCE) take_chunks<AT_ONCE>(total, sum, part + c * 32, factors + c);
#pragma unroll 1
    for (; c < many; ++c) take_chunks<1>(total, sum, part + c * 32, factors + c);
  }
  if (w > 0) return;
  float y[1] = {total};
  lane::Divisor(sum).divide(y);
  lane::store_owned(out + row * out_pitch + h * D + slice + l, y);
}
