// Q8_0 weights from a seed: the generator of oracle/weights/synthetic.py, integers only, so that a GPU can fill a model
// of any size in seconds and the oracle can make the same codes and scales again row by row.
#include "codes.cuh"

__device__ inline unsigned long long word(long long key, long long counter) {
  unsigned long long z = static_cast<unsigned long long>(key) +
                         (static_cast<unsigned long long>(counter) + 1) * 0x9E3779B97F4A7C15ull;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

// code -128 does not exist: the byte 0x80 becomes 0x81
__device__ inline unsigned without_lowest(unsigned four) {
  unsigned fixed = 0;
#pragma unroll
  for (int i = 0; i < 32; i += 8) {
    const unsigned code = four >> i & 255u;
    fixed |= (code == 0x80u ? 0x81u : code) << i;
  }
  return fixed;
}

// a thread makes one block: four words of codes and one scale
__global__ void __launch_bounds__(256)
synthetic(signed char* __restrict__ codes /* [blocks, 32] */, half_t* __restrict__ scales /* [blocks] */, long long code_key,
          long long scale_key, int lowest_scale, long long blocks) {
  const long long b = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (b >= blocks) return;
#pragma unroll
  for (int i = 0; i < lane::BLOCK; i += 8) {
    const unsigned long long w = word(code_key, b * 4 + i / 8);
    const uint2 eight{without_lowest(static_cast<unsigned>(w)), without_lowest(static_cast<unsigned>(w >> 32))};
    lane::store8(codes + b * lane::BLOCK + i, eight);
  }
  const unsigned step = static_cast<unsigned>(word(scale_key, b) >> 57);
  scales[b] = half_t{static_cast<unsigned short>(static_cast<unsigned>(lowest_scale) + step)};
}
