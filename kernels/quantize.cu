// Activation codes of float32 rows: A8 (WORDS 1) or A15 (WORDS 2), one scale per 32 elements.
#include "codes.cuh"

constexpr int OWNED = 4;

template <int WORDS>
__global__ void __launch_bounds__(128)
quantize(const float* __restrict__ x /* [rows, K] */, int x_pitch,
         signed char* __restrict__ codes /* [rows, WORDS, K] */, float* __restrict__ scales /* [rows, K/32] */, int columns, int K) {
  lane::overlap_launches();
  const long long row = blockIdx.x;
  const int k = (blockIdx.y * blockDim.x + threadIdx.x) * OWNED;
  float v[OWNED];
  lane::load_row(v, x + row * x_pitch + k, k < K);
  lane::store_codes<WORDS>(v, k, K, {codes, scales, row, columns});
}
