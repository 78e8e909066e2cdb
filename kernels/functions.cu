// One function over many inputs, and conversions between float32 and narrow formats: what the locks of the functions
// run. A thread strides through the whole array, so that a sweep over all bit patterns is few threads with long loops.
#include "functions.cuh"

constexpr int THREADS = 256;

// ids are the order of FUNCTIONS in kernels/functions.py
template <int FUNCTION>
__device__ inline float apply(float x) {
  static_assert(FUNCTION >= 0 && FUNCTION < 5, "functions: the ids are 0 exp, 1 log1p, 2 sigmoid, 3 silu, 4 softplus");
  if constexpr (FUNCTION == 0) return lane::exp(x);
  if constexpr (FUNCTION == 1) return lane::log1p(x);
  if constexpr (FUNCTION == 2) return lane::sigmoid(x);
  if constexpr (FUNCTION == 3) return lane::silu(x);
  return lane::softplus(x);
}

template <int FUNCTION>
__global__ void __launch_bounds__(THREADS)
map_function(const float* __restrict__ x /* [n] */, float* __restrict__ y /* [n] */, int n) {
  const long long stride = static_cast<long long>(gridDim.x) * THREADS;
  for (long long i = static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x; i < n; i += stride)
    y[i] = apply<FUNCTION>(x[i]);
}

// the inputs are the bit patterns first, first + 1, ...: nothing has to be copied to the device for a sweep
template <int FUNCTION>
__global__ void __launch_bounds__(THREADS)
sweep_function(float* __restrict__ y /* [n] */, unsigned first, int n) {
  const long long stride = static_cast<long long>(gridDim.x) * THREADS;
  for (long long i = static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x; i < n; i += stride)
    y[i] = apply<FUNCTION>(lane::from_bits(first + static_cast<unsigned>(i)));
}

template <typename NARROW>
__global__ void __launch_bounds__(THREADS)
encode(const float* __restrict__ x /* [n] */, NARROW* __restrict__ y /* [n] */, int n) {
  const long long stride = static_cast<long long>(gridDim.x) * THREADS;
  for (long long i = static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x; i < n; i += stride)
    lane::store(y + i, x[i]);
}

template <typename NARROW>
__global__ void __launch_bounds__(THREADS)
decode(const NARROW* __restrict__ x /* [n] */, float* __restrict__ y /* [n] */, int n) {
  const long long stride = static_cast<long long>(gridDim.x) * THREADS;
  for (long long i = static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x; i < n; i += stride)
    y[i] = lane::load(x + i);
}
