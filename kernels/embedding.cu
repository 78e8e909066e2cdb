// The embedding rows of tokens, from Q8_0 codes and scales. A thread does four neighbours.
#include "codes.cuh"

__global__ void __launch_bounds__(128)
embedding(const int* __restrict__ tokens /* [rows] */, const signed char* __restrict__ codes /* [V, K] */,
          const half_t* __restrict__ weight_scales /* [V, K/32] */, float* __restrict__ y /* [rows, K] */, int y_pitch,
          int K, int V) {
  lane::overlap_launches();
  const long long row = blockIdx.x;
  const int k = (blockIdx.y * blockDim.x + threadIdx.x) * 4;
  if (k >= K) return;
  const int token = tokens[row];
  float v[4];
  // a token that does not exist must not read outside the table, nor pass unseen: its row is NaN
  if (token < 0 || token >= V) {
    v[0] = v[1] = v[2] = v[3] = lane::from_bits(lane::QUIET_NAN);
  } else {
    const long long at = static_cast<long long>(token) * K + k;
    const float scale = lane::to_float(weight_scales[at / lane::BLOCK]);
    const int four = *reinterpret_cast<const int*>(codes + at);
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] = static_cast<float>(static_cast<signed char>(four >> 8 * i)) * scale;
  }
  lane::store_row(y + row * y_pitch + k, v);
}
