// Q8_0 to Q4: a block whose codes all lie in -8 .. 7 is kept as it is, so that it equals the int8 lane exactly; any other
// gets s4 = f16(s * max|c| / 7) and code = rint(c * s / s4) clamped. Packed biased by 8, element 2i low in byte i.
// Eight lanes a block, four codes each. An infinite scale is stored as it is: whoever loads weights refuses it by name.
#include "device.cuh"

constexpr int OWNED = 4, LANES = 8;

__global__ void __launch_bounds__(256)
q8_to_q4(const signed char* __restrict__ codes /* [N, K] */, const half_t* __restrict__ scales /* [N, KB] */,
         unsigned char* __restrict__ packed /* [N, K / 2] */, half_t* __restrict__ packed_scales /* [N, KB] */, int N, int KB) {
  const long long block = (static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x) / LANES;
  const int l = threadIdx.x % LANES;
  const bool inside = block < static_cast<long long>(N) * KB;
  int code[OWNED], most = 0;
#pragma unroll
  for (int i = 0; i < OWNED; ++i) {
    code[i] = inside ? codes[block * 32 + l * OWNED + i] : 0;
    const int magnitude = code[i] < 0 ? -code[i] : code[i];
    // one maximum for both questions: a code outside -8 .. 7 counts 256 more, and none inside is larger than it
    const int weight = magnitude + (code[i] < -8 || code[i] > 7 ? 256 : 0);
    most = weight > most ? weight : most;
  }
#pragma unroll
  for (int step = 1; step < LANES; step *= 2) {
    const int other = __shfl_xor_sync(0xFFFFFFFFu, most, step);
    most = other > most ? other : most;
  }
  if (!inside) return;
  const half_t stored = scales[block];
  const float s = lane::to_float(stored);
  const half_t narrow = lane::to_half(s * static_cast<float>(most % 256) / 7.0f);
  const float s4 = lane::to_float(narrow);
  const bool keep = most < 256;
  unsigned char nibble[OWNED];
#pragma unroll
  for (int i = 0; i < OWNED; ++i) {
    float q = s4 == 0.0f ? 0.0f : rintf(static_cast<float>(code[i]) * s / s4);
    q = q > 7.0f ? 7.0f : q < -8.0f ? -8.0f : q;
    nibble[i] = static_cast<unsigned char>((keep ? code[i] : static_cast<int>(q)) + 8);
  }
  for (int i = 0; i < OWNED; i += 2)
    packed[block * 16 + l * (OWNED / 2) + i / 2] = static_cast<unsigned char>(nibble[i] | nibble[i + 1] << 4);
  if (l == 0) packed_scales[block] = keep ? stored : narrow;
}
