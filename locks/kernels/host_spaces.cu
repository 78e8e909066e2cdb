// One instruction that names the space of its address, given an address in shared memory or in global memory.
#include "hopper.cuh"

enum Instruction { COPY, BULK_COPY, PREFETCH, LDMATRIX };

template <int INSTRUCTION, bool SHARED_ADDRESS>
__global__ void __launch_bounds__(32)
of_space(unsigned* x /* [64] */) {
  SHARED_ALIGNED(16, unsigned, near, [64]);
  SHARED_ALIGNED(16, unsigned, target, [64]);
  SHARED_ALIGNED(8, barrier_t, full, [1]);
  unsigned* const place = SHARED_ADDRESS ? near : x;
  if (threadIdx.x == 0) lane::barrier_init(full, 1), lane::barrier_publish();
  near[threadIdx.x] = near[threadIdx.x + 32] = 0;
  __syncthreads();
  if (INSTRUCTION == COPY && threadIdx.x < 8) {
    lane::cp_async16(target + threadIdx.x * 4, x + threadIdx.x * 4);  // the next one takes the short way of eager copies
    lane::cp_async16(target + threadIdx.x * 4, place + threadIdx.x * 4);
  }
  if (INSTRUCTION == COPY) lane::cp_async_commit(), lane::cp_async_wait<0>();
  if (INSTRUCTION == PREFETCH) lane::prefetch(place);
  if (INSTRUCTION == BULK_COPY) {
    if (threadIdx.x == 0) lane::barrier_expect(full, 64), lane::bulk_copy(target, place, 64, full);
    lane::barrier_wait(full, 0);
  }
  if (INSTRUCTION == LDMATRIX) {
    unsigned rows[1];
    lane::ldmatrix_x1(rows, place + threadIdx.x % 8 * 4);
  }
}
