// Small kernels of the device locks: each does one thing that a device must do right, or must notice.

// every thread writes its element; thread 0 also writes element `stray`, which may lie outside
template <int BLOCK>
__global__ void stray(float* __restrict__ y /* [N] */, int N, int stray) {
  if (static_cast<int>(threadIdx.x) < N) y[threadIdx.x] = 1.0f;
  if (threadIdx.x == 0) y[stray] = 2.0f;
}

// no two orders of these launches leave the same number
__global__ void tick(unsigned* counter /* [1] */, unsigned add) { counter[0] = counter[0] * 3u + add; }

// an address that no allocation has
__global__ void wild(float* y /* [1] */) { reinterpret_cast<volatile float*>(16)[0] = y[0]; }

// reverses a block's elements through dynamic shared memory, at its far end
__global__ void reverse(float* __restrict__ y /* [N] */, const float* __restrict__ x /* [N] */, int N, int words) {
  extern __shared__ float stage[];
  stage[words - N + threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = stage[words - 1 - threadIdx.x];
}

// the rank of each block in its cluster
__global__ void rank(unsigned* y /* [blocks] */) {
  unsigned r;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
  y[blockIdx.x] = r;
}

// busy for at least `cycles`
__global__ void spin(unsigned* y /* [1] */, int cycles) {
  const long long start = clock64();
  while (clock64() - start < cycles) {
  }
  y[0] = 1u;
}
