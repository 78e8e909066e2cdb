#pragma once
// The GPU bodies of products of a warpgroup (sm_90a).

namespace lane {

__device__ __forceinline__ unsigned shared_offset(const void* p) { return ptx::shared_address(p); }

// registers of a thread from here on, by all warps of a warpgroup: a multiple of 8; what some keep others may take
template <int N>
__device__ __forceinline__ void keep_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N)); }
template <int N>
__device__ __forceinline__ void take_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N)); }

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// all groups but the newest PENDING are complete; d belongs to one of them, and no read of it may move ahead of this
template <int PENDING, int N>
__device__ __forceinline__ void wgmma_wait(int (&d)[N]) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+r"(d[i])::"memory");
}

#define LANE_D8(d, i)                                                                                                  \
  "+r"(d[i]), "+r"(d[i + 1]), "+r"(d[i + 2]), "+r"(d[i + 3]), "+r"(d[i + 4]), "+r"(d[i + 5]), "+r"(d[i + 6]), "+r"(d[i + 7])
template <bool ADD>
__device__ __forceinline__ void wgmma_s8(int (&d)[64], const unsigned (&a)[4], unsigned long long b) {
  asm volatile(
      "{\n"
      ".reg .pred add;\n"
      "setp.ne.b32 add, %69, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k32.s32.s8.s8 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,"
      "%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,"
      "%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, "
      "{%64,%65,%66,%67}, %68, add;\n"
      "}"
      : LANE_D8(d, 0), LANE_D8(d, 8), LANE_D8(d, 16), LANE_D8(d, 24), LANE_D8(d, 32), LANE_D8(d, 40), LANE_D8(d, 48), LANE_D8(d, 56)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(ADD));
}
template <bool ADD>
__device__ __forceinline__ void wgmma_s8(int (&d)[32], const unsigned (&a)[4], unsigned long long b) {
  asm volatile(
      "{\n"
      ".reg .pred add;\n"
      "setp.ne.b32 add, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k32.s32.s8.s8 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, "
      "{%32,%33,%34,%35}, %36, add;\n"
      "}"
      : LANE_D8(d, 0), LANE_D8(d, 8), LANE_D8(d, 16), LANE_D8(d, 24)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(ADD));
}
#undef LANE_D8

}  // namespace lane
