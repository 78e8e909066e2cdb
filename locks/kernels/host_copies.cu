// Kernels of the host device's locks that copy asynchronously: one right pipeline, and each way to get it wrong.
#include "device.cuh"

// y[c] = the 32 rows of 16 bytes of chunk c in reverse order, through a ring of STAGES.
// Right: PRIMED = STAGES - 1 and WAIT = STAGES - 2, with a group a chunk (COMMIT) also where nothing is left to copy
// (EMPTY). WAIT below 0 waits for nothing.
template <int STAGES, int PRIMED, int WAIT, bool COMMIT, bool EMPTY>
__global__ void __launch_bounds__(32)
pipeline(unsigned* __restrict__ y /* [chunks, 128] */, const unsigned* __restrict__ x /* [chunks, 128] */, int chunks) {
  SHARED_ALIGNED(16, uint4, stage, [STAGES][32]);
  const int t = threadIdx.x;
  auto fetch = [&](int c) {
    if (c < chunks) lane::cp_async16(&stage[c % STAGES][t], x + (c * 32 + t) * 4);
    if (COMMIT && (EMPTY || c < chunks)) lane::cp_async_commit();
  };
  for (int c = 0; c < PRIMED; ++c) fetch(c);
  for (int c = 0; c < chunks; ++c) {
    if constexpr (WAIT >= 0) lane::cp_async_wait<WAIT>();
    __syncthreads();
    lane::store16(y + (c * 32 + t) * 4, stage[c % STAGES][31 - t]);
    __syncthreads();
    fetch(c + STAGES - 1);
  }
}

// One copy of 16 bytes, of which `filled` come from x + from, to byte `to` of an array, or to memory that is not shared.
// With `filled` below 0 nothing is copied, and y is what the other array holds.
template <bool SHARED_TARGET>
__global__ void __launch_bounds__(32)
copy(unsigned* y /* [4] */, const unsigned char* __restrict__ x /* [64] */, int to, int from, int filled) {
  SHARED_ALIGNED(16, unsigned char, stage, [64]);
  SHARED_ALIGNED(16, unsigned char, other, [16]);
  if (threadIdx.x) return;
  if (filled >= 0) lane::cp_async16(other, x);  // pending when the next one fails
  lane::cp_async_commit();
  if (filled < 0) {
    lane::cp_async_wait<0>();
    return lane::store16(y, lane::load16(other));
  }
  void* target = SHARED_TARGET ? static_cast<void*>(stage + to) : y;
  if (filled == 16) lane::cp_async16(target, x + from);
  else lane::cp_async16(target, x + from, filled);
  lane::cp_async_commit();
  lane::cp_async_wait<0>();
  if (SHARED_TARGET) *reinterpret_cast<uint4*>(y) = *reinterpret_cast<uint4*>(stage + to);
}
