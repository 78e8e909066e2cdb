// Small kernels that break one rule each, so that locks can show how the host device answers.
#include "device.cuh"

__global__ void copy_element(const float* __restrict__ x, float* __restrict__ y, int at) {
  if (threadIdx.x == 3) y[0] = x[at];
}

__global__ void write_element(float* __restrict__ y, int at) {
  if (threadIdx.x == 0) y[at] = 1.0f;
}

__global__ void shared_element(float* __restrict__ y, int read, int write) {
  SHARED(float, before, [8]);
  SHARED(float, tile, [8]);
  if (threadIdx.x) return;
  before[0] = 0.0f;
  tile[write] = 1.0f;
  y[0] = tile[read] + before[0];
}

__global__ void unwritten_shared(unsigned* __restrict__ y) {
  SHARED(unsigned, tile, [32]);
  DYNAMIC_SHARED(unsigned, more);
  y[threadIdx.x] = tile[threadIdx.x] & more[threadIdx.x];
}

// how many of a block's threads reach the barrier, and what the others do
template <int REACH, bool RETURN>
__global__ void partial_barrier(float* __restrict__ y) {
  if (threadIdx.x >= REACH) {
    if (RETURN) return;
    y[1] = __shfl_sync(0xFFFFFFFFu, 1.0f, 0);
  }
  __syncthreads();
  y[0] = 1.0f;
}

__global__ void two_barriers(float* __restrict__ y) {
  if (threadIdx.x < 16) {
    __syncthreads();
  } else {
    __syncthreads();
  }
  y[0] = 1.0f;
}

__global__ void shuffle(float* __restrict__ y, int lanes, int mask, int source) {
  const int lane = threadIdx.x;
  if (lane < lanes) y[lane] = __shfl_sync(mask, static_cast<float>(lane), source);
}

__global__ void mixed_collectives(float* __restrict__ y) {
  if (threadIdx.x < 16)
    y[0] = __shfl_sync(0xFFFFFFFFu, 1.0f, 0);
  else
    y[1] = static_cast<float>(__ballot_sync(0xFFFFFFFFu, 1));
}

// each half of a warp on its own, then together: groups of lanes with different counts of collectives
__global__ void halves(int* __restrict__ y) {
  const int lane = threadIdx.x;
  int sum = lane;
  if (lane < 16) {
    for (int d = 8; d; d /= 2) sum += __shfl_xor_sync(0x0000FFFFu, sum, d);
  } else {
    sum = __shfl_down_sync(0xFFFF0000u, sum, 1) + __shfl_up_sync(0xFFFF0000u, lane, 2, 8);
  }
  sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 16);
  y[lane] = sum + 1000 * __popc(__ballot_sync(0xFFFFFFFFu, lane % 3 == 0));
}

// reads what a thread of another warp wrote; right only with the barrier
template <bool BARRIER>
__global__ void reverse(const int* __restrict__ x, int* __restrict__ y) {
  SHARED(int, tile, [64]);
  tile[threadIdx.x] = x[threadIdx.x];
  if (BARRIER) __syncthreads();
  y[threadIdx.x] = tile[63 - threadIdx.x];
}

// the same within one warp
template <bool BARRIER>
__global__ void reverse_warp(const int* __restrict__ x, int* __restrict__ y) {
  SHARED(int, tile, [32]);
  tile[threadIdx.x] = x[threadIdx.x];
  if (BARRIER) __syncwarp();
  y[threadIdx.x] = tile[31 - threadIdx.x];
}

__global__ void order(int* __restrict__ ticket, int* __restrict__ seen) {
  seen[atomicAdd(ticket, 1)] = blockIdx.x * blockDim.x + threadIdx.x;
}

// a ring of STAGES over `chunks` of 16 bytes a thread; right with WAIT = STAGES - 2 between, LAST = 0 at the end and
// PRIMED = STAGES - 1
template <int STAGES, int WAIT, int LAST, int PRIMED>
__global__ void pipeline(const int* __restrict__ x, int* __restrict__ y, int chunks) {
  SHARED_ALIGNED(16, int, ring, [STAGES][32][4]);
  const int t = threadIdx.x;
  for (int c = 0; c < PRIMED; ++c) {
    lane::cp_async16(ring[c][t], x + (c * 32 + t) * 4);
    lane::cp_async_commit();
  }
  int sum = 0;
  for (int c = 0; c < chunks; ++c) {
    if (chunks - c >= STAGES - 1) lane::cp_async_wait<WAIT>();
    else lane::cp_async_wait<LAST>();
    sum += ring[c % STAGES][t][1];
    const int next = c + STAGES - 1;
    if (next < chunks) {
      lane::cp_async16(ring[next % STAGES][t], x + (next * 32 + t) * 4);
      lane::cp_async_commit();
    }
  }
  y[t] = sum;
}

__global__ void multiply(const float* __restrict__ x, float* __restrict__ y) {
  y[threadIdx.x] = x[0] * x[1];
}

__noinline__ int recurse(int depth, volatile int* sink) {
  volatile int frame[256];
  frame[depth % 256] = depth;
  *sink = frame[depth % 256];
  return depth == 0 ? 0 : recurse(depth - 1, sink) + frame[0];
}

__global__ void deep(int* __restrict__ y, int depth) { y[threadIdx.x] = recurse(depth, y); }

__global__ void load_vector(const signed char* __restrict__ x, int* __restrict__ y, int at) {
  y[threadIdx.x] = static_cast<int>(lane::load16(x + at).x);
}

// 3 dp4a and 1 load a thread, 1 shuffle, 2 values summed and 1 product a warp, 2 barriers a block, 16 bytes copied a thread
__global__ void counted(const int* __restrict__ x, int* __restrict__ y) {
  SHARED_ALIGNED(16, int, tile, [64][4]);
  const int t = threadIdx.x;
  lane::cp_async16(tile[t], x);
  lane::cp_async_commit();
  lane::cp_async_wait<0>();
  __syncthreads();
  int sum = static_cast<int>(lane::load16(x).y) + tile[63 - t][0];
  for (int i = 0; i < 3; ++i) sum = lane::dp4a(sum, i, sum);
  float v[2] = {1.0f, 2.0f};
  lane::warp_sum(v);
  int d[4] = {0, 0, 0, 0};
  lane::mma_s8(d, {1u, 2u, 3u, 4u}, {5u, 6u});
  __syncthreads();
  y[blockIdx.x * 64 + t] = __shfl_xor_sync(0xFFFFFFFFu, sum + d[0] + static_cast<int>(v[0] + v[1]), 1);
}
