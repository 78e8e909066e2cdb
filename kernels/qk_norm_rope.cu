// RMS norm and rotation of query and key heads, and the store of keys and values into the cache.
//
// A warp owns a head. The first ROTATED dims of a head are rotated in pairs (j, j + ROTATED / 2) at the row's own
// position; the partner's value comes from the lane that owns it. The cache is written once, from float32, so that an
// f16 cache rounds each value once.
#include "head.cuh"

// pairs (j, j + R/2) of a head whose lane owns PER neighbours: R/2 is a whole number of lanes, so partners share an
// index
template <int PER>
__device__ inline void rotate(float (&x)[PER], const float* __restrict__ cosine, const float* __restrict__ sine,
                              int R) {
  const int l = threadIdx.x % 32, half = R / 2 / PER;
  const bool low = l < half, turned = l < 2 * half;
  const int partner = low ? l + half : turned ? l - half : l;
#pragma unroll
  for (int i = 0; i < PER; ++i) {
    // every lane takes part in the shuffle; lanes past R keep their value
    const float other = __shfl_sync(0xffffffffu, x[i], partner);
    if (!turned) continue;
    const int pair = (low ? l : partner) * PER + i;
    const float c = cosine[pair], s = sine[pair];
    x[i] = low ? fmaf(x[i], c, -(other * s)) : fmaf(x[i], c, other * s);
  }
}

// heads of a row: HQ query heads, then HKV key heads, then HKV value heads; the row is [Q | gate | K | V]
template <int D, typename KV>
__global__ void __launch_bounds__(128)
qk_norm_rope(const float* __restrict__ x /* [T, B, 2 HQ D + 2 HKV D] */, int x_pitch,
             const float* __restrict__ wq /* [D] */,
             const float* __restrict__ wk /* [D] */, const float* __restrict__ cosine /* [context, R/2] */,
             const float* __restrict__ sine /* [context, R/2] */, const int* __restrict__ slot /* [B], -1: none */,
             const int* __restrict__ position /* [B], of the first token */,
             const int* __restrict__ length /* [B], <= T */,
             float* __restrict__ q /* [T, B, HQ D] */, int q_pitch,
             KV* __restrict__ keys /* [slots, HKV, context, D] */,
             KV* __restrict__ values /* [slots, HKV, context, D] */, int B, int HQ, int HKV, int R, int context,
             float eps) {
  lane::overlap_launches();
  constexpr int PER = lane::Head<D>::PER;
  const int head = blockIdx.y * (blockDim.x / 32) + threadIdx.x / 32;
  const long long row = blockIdx.x;
  const int b = blockIdx.x % B, t = blockIdx.x / B;
  if (head >= HQ + 2 * HKV || slot[b] < 0 || t >= length[b]) return;
  const int l = threadIdx.x % 32, p = position[b] + t;
  const int column = head < HQ ? head * D : (HQ + head) * D;  // the gate lies between queries and keys

  float v[PER];
  lane::load_owned(v, x + row * x_pitch + column + l * PER);
  if (head < HQ + HKV) {
    float w[PER];
    lane::load_owned(w, (head < HQ ? wq : wk) + l * PER);
    lane::head_rms_norm<D>(v, w, eps);
    const long long angle = static_cast<long long>(p) * (R / 2);
    rotate(v, cosine + angle, sine + angle, R);
  }
  if (head < HQ) {
    lane::store_owned(q + row * q_pitch + head * D + l * PER, v);
    return;
  }
  KV* cache = head < HQ + HKV ? keys : values;
  const int kv = (head - HQ) % HKV;
  lane::store_owned(cache + ((static_cast<long long>(slot[b]) * HKV + kv) * context + p) * D + l * PER, v);
}
