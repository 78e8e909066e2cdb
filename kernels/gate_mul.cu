// y = x * sigmoid(gate), in float32 or quantised at once; both forms take the product in the same place.
// A lane owns four neighbours, so that loads are 16 bytes and a block of 32 lies in 8 lanes of one warp.
#include "codes.cuh"
#include "functions.cuh"

constexpr int OWNED = 4;

__device__ inline void gated(float (&v)[OWNED], const float* __restrict__ x, const float* __restrict__ gate,
                             bool inside) {
  float g[OWNED];
  lane::load_row(v, x, inside);
  lane::load_row(g, gate, inside);
#pragma unroll
  for (int i = 0; i < OWNED; ++i) v[i] = v[i] * lane::sigmoid(g[i]);
}

__global__ void __launch_bounds__(128)
gate_mul(const float* __restrict__ x /* [rows, K] */, int x_pitch, const float* __restrict__ gate /* [rows, K] */,
         int gate_pitch, float* __restrict__ y /* [rows, K] */, int y_pitch, int K) {
  lane::overlap_launches();
  const long long row = blockIdx.x;
  const int k = (blockIdx.y * blockDim.x + threadIdx.x) * OWNED;
  if (k >= K) return;
  float v[OWNED];
  gated(v, x + row * x_pitch + k, gate + row * gate_pitch + k, true);
  lane::store_row(y + row * y_pitch + k, v);
}

template <int WORDS>
__global__ void __launch_bounds__(128)
gate_mul_quantize(const float* __restrict__ x /* [rows, K] */, int x_pitch,
                  const float* __restrict__ gate /* [rows, K] */, int gate_pitch,
                  signed char* __restrict__ codes /* [rows, WORDS, K] */, float* __restrict__ scales /* [rows, K/32] */, int columns,
                  int K) {
  lane::overlap_launches();
  const long long row = blockIdx.x;
  const int k = (blockIdx.y * blockDim.x + threadIdx.x) * OWNED;
  float v[OWNED];
  gated(v, x + row * x_pitch + k, gate + row * gate_pitch + k, k < K);
  lane::store_codes<WORDS>(v, k, K, {codes, scales, row, columns});
}
