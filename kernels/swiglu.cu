// SwiGLU and its quantiser: y = silu(gate) * up, where a row is [gate | up], each F wide, or P split-K planes of that.
// A lane owns four neighbours, so that loads are 16 bytes and a block of 32 lies in 8 lanes of one warp.
#include "codes.cuh"
#include "functions.cuh"

constexpr int OWNED = 4;

// eight blocks a multiprocessor leave registers for four planes of gate and up in flight
template <int WORDS, bool PLANED>
__global__ void __launch_bounds__(128, 8)
swiglu_quantize(const float* __restrict__ x /* [planes, rows, 2 F] */, int x_pitch, int planes,
                signed char* __restrict__ codes /* [rows, WORDS, F] */, float* __restrict__ scales /* [rows, F/32] */, int columns,
                int F) {
  lane::overlap_launches();
  const long long row = blockIdx.x, stride = static_cast<long long>(gridDim.x) * x_pitch;
  const int k = (blockIdx.y * blockDim.x + threadIdx.x) * OWNED;
  const float* gate = x + row * x_pitch + k;
  float v[OWNED], up[OWNED];
  lane::load_planes<PLANED, 4>(v, gate, k < F, planes, stride);
  lane::load_planes<PLANED, 4>(up, gate + F, k < F, planes, stride);
#pragma unroll
  for (int i = 0; i < OWNED; ++i) v[i] = lane::silu(v[i]) * up[i];
  lane::store_codes<WORDS>(v, k, F, {codes, scales, row, columns});
}
