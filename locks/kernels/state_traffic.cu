// How often the kernels of the delta rule touch the state: their sources over a float that counts its loads and
// stores. Host device only.
#include "functions.cuh"
#include "head.cuh"

namespace lane {

struct counted_t {
  float value;
};
inline int* counts;  // loads, stores

__device__ inline float load(const counted_t* p) {
  atomicAdd(&counts[0], 1);
  return p->value;
}
__device__ inline void store(counted_t* p, float x) {
  atomicAdd(&counts[1], 1);
  p->value = x;
}
// what is rounded in registers touches no memory
template <>
__device__ inline float rounded<counted_t>(float x) {
  return x;
}

}  // namespace lane

namespace scan {
#include "delta_rule.cu"
}
namespace chunk {
#include "delta_chunk.cu"
}

__device__ inline lane::counted_t* counted(float* p) { return reinterpret_cast<lane::counted_t*>(p); }
__device__ inline const lane::counted_t* counted(const float* p) { return reinterpret_cast<const lane::counted_t*>(p); }

template <int D, bool STAGED, bool ONE>
__global__ void __launch_bounds__(128)
delta_rule_traffic(const float* qkv, int qkv_pitch, const float* alpha, const float* beta, float* state, const int* slot,
                   const int* position, const int* length, const int* replay, float* o, int o_pitch, int B, int HK, int HV,
                   float scale, int* counts /* [2] */) {
  lane::counts = counts;
  scan::delta_rule<D, lane::counted_t, 8, STAGED, ONE>(qkv, qkv_pitch, alpha, beta, counted(state), slot, position, length,
                                                       replay, o, o_pitch, B, HK, HV, scale);
}

template <int D, int CHUNK>
__global__ void __launch_bounds__(128)
delta_chunk_traffic(const float* qkv, int qkv_pitch, const float* g, const float* beta, float* state, const int* slot,
                    const int* position, const int* length, float* o, int o_pitch, int first, int B, int HK, int HV,
                    float scale, int* counts /* [2] */) {
  lane::counts = counts;
  chunk::delta_chunk<D, CHUNK, lane::counted_t>(qkv, qkv_pitch, g, beta, counted(state), slot, position, length, o, o_pitch,
                                                first, B, HK, HV, scale);
}
