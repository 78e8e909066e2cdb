#pragma once
// What only Hopper has, with two bodies: PTX on a GPU (*_ptx.cuh), models on the host (harness/host/runtime/hopper.h).
//
// A barrier_t counts arrivals and bytes: a phase ends when all arrivals have come and all bytes that they announced have
// been copied. Phases have alternate parity, from 0; a wait for a parity returns at once where the phase that runs has the
// other one, so that a thread that skips a phase waits for one long over and reads what nobody has filled yet.
#include "device.cuh"

struct alignas(8) barrier_t {
  unsigned long long state;
};

#ifdef LANELOCK_HOST
#include "hopper.h"
#else
#include "hopper_ptx.cuh"
#include "wgmma_ptx.cuh"
#endif

// ---- products of a warpgroup: 4 warps, 16 rows of A each, with columns of B that are read from shared memory
//
// wgmma_s8 starts D = A B, or D = A B + D. A warp's 16 x 32 bytes of A lie in registers as m16n8k32 has them, and so do 8
// columns of D at a time. Before it wgmma_fence says that the registers are ready, and fence_proxy, by whoever wrote B, that
// B is; after wgmma_commit and wgmma_wait D may be read, and A and B changed. Warps of a group give the same B.
namespace lane {

// Where B lies: COLUMNS rows of 32 bytes that are 128 bytes apart and swizzled as the hardware swizzles 128 bytes: 16-byte
// unit u of a row lies at u ^ (address / 128 % 8). `p` is the first row's start at a multiple of 1024, or one of its blocks of 32.
__device__ __forceinline__ unsigned long long swizzled_operand(const void* p) {
  constexpr unsigned long long ROWS_OF_8 = 1024, SWIZZLE_128 = 1;
  return (shared_offset(p) & 0x3FFFFu) >> 4 | ROWS_OF_8 >> 4 << 32 | SWIZZLE_128 << 62;
}

}  // namespace lane
