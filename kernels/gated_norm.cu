// RMS norm of each value head, times w, times silu(z), quantised: what leaves a Gated DeltaNet mixer.
// A warp owns a head; the quantiser's blocks of 32 lie inside it.
#include "codes.cuh"
#include "functions.cuh"
#include "head.cuh"

template <int D, int WORDS>
__global__ void __launch_bounds__(128)
gated_norm_quantize(const float* __restrict__ o /* [rows, HV D] */, int o_pitch,
                    const float* __restrict__ z /* [rows, HV D] */,
                    int z_pitch, const float* __restrict__ w /* [D] */,
                    signed char* __restrict__ codes /* [rows, WORDS, HV D] */,
                    float* __restrict__ scales /* [rows, HV D/32] */, int columns,
                    float* __restrict__ normed /* [rows, HV D] or null */,
                    int normed_pitch, int HV, float eps) {
  lane::overlap_launches();
  constexpr int PER = lane::Head<D>::PER;
  const long long row = blockIdx.x;
  const int h = blockIdx.y * (blockDim.x / 32) + threadIdx.x / 32;
  if (h >= HV) return;
  const int l = threadIdx.x % 32, k = h * D + l * PER, K = HV * D;
  float x[PER], gate[PER], weight[PER];
  lane::load_owned(x, o + row * o_pitch + k);
  lane::load_owned(gate, z + row * z_pitch + k);
  lane::load_owned(weight, w + l * PER);
  lane::head_rms_norm<D>(x, weight, eps);
#pragma unroll
  for (int i = 0; i < PER; ++i) x[i] = x[i] * lane::silu(gate[i]);
  if (normed != nullptr) lane::store_owned(normed + row * normed_pitch + k, x);
  lane::store_codes<WORDS>(x, k, K, {codes, scales, row, columns});
}
