// A warp copies rows of words, another reads each when its barrier says that it is there.
#include "hopper.cuh"

enum Fault { RIGHT, AT_ONCE, NOBODY_WAITS, ONE_LANE_SHORT, COPY_BEHIND };

template <int FAULT>
__global__ void __launch_bounds__(64)
copies_arrive(const int* __restrict__ x /* [chunks, 32, 4] */, int* __restrict__ y /* [chunks, 32, 4] */, int chunks) {
  SHARED(int, stages, [2 * 128]);
  SHARED(barrier_t, full, [2]);
  const int l = threadIdx.x % 32;
  if (threadIdx.x < 2) lane::barrier_init(full + threadIdx.x, FAULT == ONE_LANE_SHORT ? 31 : 32);
  __syncthreads();
  for (int c = 0; c < chunks; ++c) {
    int* stage = stages + c % 2 * 128 + l * 4;
    if (threadIdx.x < 32) {
      if (FAULT != COPY_BEHIND) lane::cp_async16(stage, x + (c * 32 + l) * 4);
      if (FAULT == AT_ONCE) lane::barrier_arrive(full + c % 2);
      else lane::cp_async_arrive(full + c % 2);
      if (FAULT == COPY_BEHIND) lane::cp_async16(stage, x + (c * 32 + l) * 4);
    } else {
      if (FAULT != NOBODY_WAITS) lane::barrier_wait(full + c % 2, c / 2 % 2);
      lane::store16(y + (c * 32 + l) * 4, lane::load16(stage));
    }
    __syncthreads();
  }
}

enum CopyFault { SHOWN, NOT_SHOWN, SET_UP_TWICE, ADMITTED_EARLY };

// Rows of words are copied over what the threads stored there.
template <int FAULT>
__global__ void __launch_bounds__(32)
copied_over_stores(const int* __restrict__ x /* [32, 4] */, int* __restrict__ y /* [32, 4] */) {
  DYNAMIC_SHARED_ALIGNED(16, int, rows);
  SHARED(barrier_t, full, [1]);
  int* row = rows + threadIdx.x * 4;
  lane::store16(row, uint4{0, 0, 0, 0});
  if (FAULT != NOT_SHOWN) lane::fence_proxy();
  if (threadIdx.x == 0 || FAULT == SET_UP_TWICE) lane::barrier_init(full, 1), lane::barrier_publish();
  __syncthreads();
  if (FAULT == ADMITTED_EARLY) lane::admit_next_launch();
  if (threadIdx.x == 0) lane::barrier_expect(full, 512), lane::bulk_copy(rows, x, 512, full);
  lane::admit_next_launch();
  lane::barrier_wait(full, 0);
  lane::store16(y + threadIdx.x * 4, lane::load16(row));
}
