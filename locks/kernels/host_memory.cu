// Kernels of the host device's locks that touch memory: each reads or writes one place that the launch chooses.
#include "device.cuh"

// y[0] = x[at]
template <class T>
__global__ void __launch_bounds__(32)
read_at(T* __restrict__ y /* [1] */, const T* __restrict__ x /* [N] */, int at) {
  if (threadIdx.x == 0) y[0] = x[at];
}

// y[at] = 1; the other elements keep what they hold
template <class T>
__global__ void __launch_bounds__(32)
write_at(T* __restrict__ y /* [N] */, int at) {
  if (threadIdx.x == 0) y[at] = T{1};
}

// element `at` of the first of two shared arrays of 8 is read, or written
template <bool WRITE>
__global__ void __launch_bounds__(32)
shared_at(float* __restrict__ y /* [1] */, int at) {
  SHARED(float, first, [8]);
  SHARED(float, second, [8]);
  if (threadIdx.x < 8) first[threadIdx.x] = second[threadIdx.x] = 3.0f;
  __syncthreads();
  if (threadIdx.x) return;
  if (WRITE) first[at] = 4.0f;
  y[0] = WRITE ? second[0] : first[at];
}

// one word aligned to 16 bytes: the words behind it belong to nobody
__global__ void __launch_bounds__(32)
shared_slack(float* __restrict__ y /* [1] */, int at) {
  SHARED_ALIGNED(16, float, word, [1]);
  if (threadIdx.x) return;
  word[0] = 1.0f;
  word[at] = 1.0f;
  y[0] = word[0];
}

// element `at` of dynamic shared memory is read, or written
template <bool WRITE>
__global__ void __launch_bounds__(32)
dynamic_at(float* __restrict__ y /* [1] */, int at, int words) {
  DYNAMIC_SHARED(float, stage);
  for (int i = threadIdx.x; i < words; i += 32) stage[i] = 3.0f;
  __syncthreads();
  if (threadIdx.x) return;
  if (WRITE) stage[at] = 4.0f;
  y[0] = stage[WRITE ? 0 : at];
}

// what shared memory holds before anything is written; then every block writes it for the next one to find
__global__ void __launch_bounds__(32)
shared_first(unsigned* __restrict__ y /* [blocks, 32] */, unsigned* __restrict__ z /* [blocks, 32] */) {
  SHARED(unsigned, fixed, [32]);
  DYNAMIC_SHARED(unsigned, chosen);
  const unsigned t = threadIdx.x, i = blockIdx.x * 32 + t;
  y[i] = fixed[t], z[i] = chosen[t];
  fixed[t] = chosen[t] = 1;
}

__global__ void __launch_bounds__(32)
too_much_shared(float* __restrict__ y /* [1] */) {
  SHARED(float, large, [12289]);
  large[threadIdx.x] = 0.0f;
  y[0] = large[0];
}

// 16 bytes from byte `at` on, by the primitive or by the compiler's own vector instruction
template <bool PRIMITIVE>
__global__ void __launch_bounds__(32)
load_at(unsigned* __restrict__ y /* [4] */, const unsigned char* __restrict__ x /* [64] */, int at) {
  if (threadIdx.x) return;
  *reinterpret_cast<uint4*>(y) = PRIMITIVE ? lane::load16(x + at) : *reinterpret_cast<const uint4*>(x + at);
}

template <bool PRIMITIVE>
__global__ void __launch_bounds__(32)
store_at(unsigned char* __restrict__ y /* [64] */, const unsigned* __restrict__ x /* [4] */, int at) {
  if (threadIdx.x) return;
  const uint4 v = *reinterpret_cast<const uint4*>(x);
  if (PRIMITIVE) lane::store16(y + at, v);
  else *reinterpret_cast<uint4*>(y + at) = v;
}

// reads through a pointer that may be null, or through an address made of an integer
__global__ void __launch_bounds__(32)
read_pointer(float* __restrict__ y /* [1] */, const float* x /* [1] or null */, long long address) {
  const volatile float* wild = reinterpret_cast<const float*>(address);
  if (threadIdx.x == 0) y[0] = address ? *wild : *x;
}

// a stack that grows by at least 256 bytes a call, or by one frame of `WORDS` words
__noinline__ static int deeper(int depth) {
  volatile int frame[64];
  frame[depth & 63] = depth;
  return depth ? deeper(depth - 1) + frame[depth & 63] : 0;
}
template <int WORDS>
__global__ void __launch_bounds__(64)
stack(int* __restrict__ y /* [64] */, int depth) {
  if (WORDS > 1) {
    volatile int frame[WORDS];
    frame[0] = depth;
    y[threadIdx.x] = frame[0] + frame[depth & (WORDS - 1)] * 0;
  } else {
    y[threadIdx.x] = threadIdx.x ? 0 : deeper(depth);
  }
}
