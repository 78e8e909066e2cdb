// Kernels of the host device's locks that order threads: barriers, collectives, schedules, counters, floating point.
#include "device.cuh"

constexpr unsigned ALL = 0xFFFFFFFFu;

// only threads below `limit` come to the barrier; the others leave
__global__ void __launch_bounds__(128)
barrier_of_some(int* __restrict__ y /* [threads] */, int limit) {
  if (static_cast<int>(threadIdx.x) < limit) __syncthreads();
  y[threadIdx.x] = 1;
}

// the block splits over two barriers
__global__ void __launch_bounds__(128)
barrier_of_two_places(int* __restrict__ y /* [threads] */, int limit) {
  if (static_cast<int>(threadIdx.x) < limit) {
    __syncthreads();
    y[threadIdx.x] = 1;
  } else {
    __syncthreads();
    y[threadIdx.x] = 2;
  }
}

// half a warp waits at the barrier, half for all 32 lanes
__global__ void __launch_bounds__(32)
barrier_and_shuffle(int* __restrict__ y /* [32] */) {
  int v = static_cast<int>(threadIdx.x);
  if (v >= 16) v = __shfl_sync(ALL, v, 0);
  __syncthreads();
  y[threadIdx.x] = v;
}

// the first warp passes barriers that the second has yet to see: only the number of the barrier tells them apart
__global__ void __launch_bounds__(128)
barriers_in_a_row(int* __restrict__ y /* [threads] */, int rounds) {
  SHARED(int, x, [128]);
  const int t = threadIdx.x, n = blockDim.x;
  int v = t;
  for (int i = 0; i < rounds; ++i) {
    x[t] = v;
    __syncthreads();
    v = x[(t + 1) % n] + i;
    __syncthreads();
  }
  y[t] = v;
}

// Even warps have a barrier of their own, and odd ones; the last warp comes late, after the third has passed its own.
// `id` may not exist, and the two may disagree about the size of one.
__global__ void __launch_bounds__(128)
barrier_by_name(int* __restrict__ y /* [128] */, unsigned id, int wrong) {
  SHARED(int, x, [128]);
  const unsigned t = threadIdx.x, odd = t / 32 % 2;
  if (t / 32 == 3) lane::named_barrier(id + 2, 64);
  x[t] = static_cast<int>(t);
  lane::named_barrier(wrong ? id : id + odd, wrong ? 80 + odd : 64);
  if (t / 32 == 2) lane::named_barrier(id + 2, 64);
  y[t] = x[(t + 64) % 128];
}

// the reader needs the barrier that SYNC leaves out
template <bool SYNC>
__global__ void __launch_bounds__(64)
reverse_block(int* __restrict__ y /* [64] */, const int* __restrict__ x /* [64] */) {
  SHARED(int, s, [64]);
  s[threadIdx.x] = x[threadIdx.x];
  if (SYNC) __syncthreads();
  y[threadIdx.x] = s[63 - threadIdx.x];
}

// the same inside one warp, where SYNC is __syncwarp
template <bool SYNC>
__global__ void __launch_bounds__(32)
reverse_warp(int* __restrict__ y /* [32] */, const int* __restrict__ x /* [32] */) {
  SHARED(int, s, [32]);
  s[threadIdx.x] = x[threadIdx.x];
  if (SYNC) __syncwarp();
  y[threadIdx.x] = s[31 - threadIdx.x];
}

// the last block to come wins
__global__ void __launch_bounds__(32)
last_block(int* __restrict__ y /* [1] */) {
  y[0] = static_cast<int>(blockIdx.x);
}

// lanes below `lanes` shuffle with `mask` from lane `source`; the others are not there
__global__ void __launch_bounds__(64)
shuffle_of(int* __restrict__ y /* [threads] */, unsigned mask, int source, int lanes) {
  int v = static_cast<int>(threadIdx.x);
  if (v % 32 < lanes) v = __shfl_sync(mask, v, source);
  y[threadIdx.x] = v;
}

// one half of a warp shuffles while the other votes
__global__ void __launch_bounds__(32)
two_collectives(int* __restrict__ y /* [32] */) {
  const int v = static_cast<int>(threadIdx.x);
  y[v] = v < 16 ? __shfl_sync(ALL, v, 0) : __any_sync(ALL, v);
}

// halves of a warp work by themselves, at different paces, then together; masks may change from one to the next
__global__ void __launch_bounds__(32)
halves(int* __restrict__ y /* [32] */, int rounds) {
  const int l = threadIdx.x;
  const unsigned own = l < 16 ? 0x0000FFFFu : 0xFFFF0000u, quarter = 0xFFu << l / 8 * 8;
  int v = l;
  for (int i = 0; i < (l < 16 ? rounds : 1); ++i) v = __shfl_xor_sync(own, v, 1 + i % 15, 16) + 1;
  // the second shuffle of a quarter comes to the slot of the half's last one, which its other lanes may have yet to read
  v = 3 * v + __shfl_xor_sync(own, v, 15, 16);
  v += __shfl_xor_sync(quarter, v, 5, 8);
  v += __shfl_xor_sync(quarter, v, 3, 8);
  y[l] = v + __shfl_xor_sync(ALL, v, 16);
}

// the order in which threads arrive, by block: y[rank] = thread
__global__ void __launch_bounds__(64)
order(int* __restrict__ y /* [2, blocks, 64] */, int* __restrict__ next /* [2], zeros */, int blocks) {
  const int t = blockIdx.x * 64 + threadIdx.x;
  y[atomicAdd(&next[0], 1)] = t;
  __syncthreads();
  y[blocks * 64 + atomicAdd(&next[1], 1)] = t;
}

// a known amount of work: see the lock
__global__ void __launch_bounds__(64)
work(int* __restrict__ y /* [2, 64, 4] */, const int* __restrict__ x /* [2, 64, 4] */) {
  const int at = (blockIdx.x * 64 + threadIdx.x) * 4;
  uint4 v = lane::load16(x + at);
  int sum = 0;
  for (int i = 0; i < 3; ++i) sum = lane::dp4a(static_cast<int>(v.x), static_cast<int>(v.y), sum);
  for (int i = 0; i < 5; ++i) sum = __shfl_xor_sync(ALL, sum, 1);
  sum += __any_sync(ALL, sum);
  float two[2] = {1.0f, 2.0f};
  lane::warp_sum(two);
  int d[4] = {0, 0, 0, 0};
  lane::mma_s8(d, {1u, 2u, 3u, 4u}, {5u, 6u});
  sum += d[0] + static_cast<int>(two[1]);
  __syncwarp();
  for (int i = 0; i < 2; ++i) __syncthreads();
  v.x = static_cast<unsigned>(sum);
  lane::store16(y + at, v);
}

// y = x / 2, the smallest step below the normal numbers
__global__ void __launch_bounds__(32)
half_of(float* __restrict__ y /* [32] */, const float* __restrict__ x /* [32] */) {
  y[threadIdx.x] = x[threadIdx.x] * 0.5f;
}

// y = x / by, where a GPU gives some number for a divisor of zero; `by` below 0 traps
__global__ void __launch_bounds__(32)
quotient(int* __restrict__ y /* [threads] */, int by) {
  if (by < 0) __builtin_trap();
  y[threadIdx.x] = static_cast<int>(threadIdx.x) / by;
}

// what no kernel may do
__global__ void __launch_bounds__(32)
changes_rounding(float* __restrict__ y /* [32] */) {
#if defined(__x86_64__)
  if (threadIdx.x == 0) __builtin_ia32_ldmxcsr(0x9FC0);
#elif defined(__aarch64__)
  if (threadIdx.x == 0) __builtin_aarch64_set_fpcr(1u << 24);
#endif
  y[threadIdx.x] = 0.0f;
}

// no two orders of these launches leave the same number
__global__ void __launch_bounds__(32)
step(unsigned* counter /* [1] */, unsigned add) {
  if (threadIdx.x == 0) counter[0] = counter[0] * 3u + add;
}

// where this thread is
__global__ void __launch_bounds__(64)
place(int* __restrict__ y /* [blocks, threads, 3] */) {
  const int thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  const int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  int* at = y + (block * static_cast<int>(blockDim.x * blockDim.y * blockDim.z) + thread) * 3;
  at[0] = block, at[1] = thread, at[2] = static_cast<int>(gridDim.x * gridDim.y * gridDim.z);
}
