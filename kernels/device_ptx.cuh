#pragma once
// The GPU bodies of namespace lane: all PTX of the sm_80 baseline (and e4m3 from sm_89) is here.

#define SHARED_ALIGNED(alignment, type, name, ...) __shared__ __align__(alignment) type name __VA_ARGS__
#define SHARED(type, name, ...) __shared__ type name __VA_ARGS__
#define DYNAMIC_SHARED_ALIGNED(alignment, type, name)                  \
  extern __shared__ __align__(alignment) unsigned char name##_bytes[]; \
  type* name = reinterpret_cast<type*>(name##_bytes)
#define DYNAMIC_SHARED(type, name) DYNAMIC_SHARED_ALIGNED(16, type, name)

namespace ptx {

__device__ __forceinline__ unsigned shared_address(const void* p) {
  return static_cast<unsigned>(__cvta_generic_to_shared(p));
}

__device__ __forceinline__ float half_to_float(unsigned short h) {
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(h));
  return x;
}

// the first in the low half
__device__ __forceinline__ unsigned floats_to_halves(float x, float y) {
  unsigned pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(y), "f"(x));
  return pair;
}

__device__ __forceinline__ unsigned short float_to_half(float x) {
  unsigned short h;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x));
  return h;
}

#if __CUDA_ARCH__ >= 890
__device__ __forceinline__ unsigned char float_to_e4m3(float x) {
  unsigned short pair;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(x));
  return static_cast<unsigned char>(pair);
}
#endif

}  // namespace ptx

namespace lane {

__device__ __forceinline__ int dp4a(int a, int b, int c) {
  int d;
  asm("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

// (x & kept) ^ turned, in one operation: the compiler makes two of it where both are constants
__device__ __forceinline__ unsigned and_xor(unsigned x, unsigned kept, unsigned turned) {
  unsigned y;
  asm("lop3.b32 %0, %1, %2, %3, 0x6A;" : "=r"(y) : "r"(x), "r"(kept), "r"(turned));
  return y;
}

// D += A B with A 16 x 32 row-major, B 32 x 8 column-major
__device__ __forceinline__ void mma_s8(int (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// D = A B + c: the constant stays in registers of its own, where an accumulator would have to be set before each product
__device__ __forceinline__ void mma_s8(int (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2], int c) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(c));
}

#if __CUDA_ARCH__ >= 890
__device__ __forceinline__ void mma_e4m3(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  asm("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#endif

#define LANE_LDMATRIX(suffix, trans)                                                                              \
  __device__ __forceinline__ void ldmatrix_x1##suffix(unsigned (&r)[1], const void* p) {                          \
    asm volatile("ldmatrix.sync.aligned.m8n8.x1" trans ".shared.b16 {%0}, [%1];"                                  \
                 : "=r"(r[0]) : "r"(ptx::shared_address(p)) : "memory");                                          \
  }                                                                                                               \
  __device__ __forceinline__ void ldmatrix_x2##suffix(unsigned (&r)[2], const void* p) {                          \
    asm volatile("ldmatrix.sync.aligned.m8n8.x2" trans ".shared.b16 {%0,%1}, [%2];"                               \
                 : "=r"(r[0]), "=r"(r[1]) : "r"(ptx::shared_address(p)) : "memory");                              \
  }                                                                                                               \
  __device__ __forceinline__ void ldmatrix_x4##suffix(unsigned (&r)[4], const void* p) {                          \
    asm volatile("ldmatrix.sync.aligned.m8n8.x4" trans ".shared.b16 {%0,%1,%2,%3}, [%4];"                         \
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(ptx::shared_address(p)) : "memory");      \
  }
LANE_LDMATRIX(, "")
LANE_LDMATRIX(_trans, ".trans")
#undef LANE_LDMATRIX

__device__ __forceinline__ void cp_async16(void* shared, const void* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(ptx::shared_address(shared)), "l"(global) : "memory");
}

__device__ __forceinline__ void cp_async4(void* shared, const void* global) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(ptx::shared_address(shared)), "l"(global) : "memory");
}

// the first `bytes` come from memory, the rest of the 16 are zeros
__device__ __forceinline__ void cp_async16(void* shared, const void* global, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(ptx::shared_address(shared)), "l"(global), "r"(bytes)
               : "memory");
}

// the 4 bytes, or none of them and a zero
__device__ __forceinline__ void cp_async4(void* shared, const void* global, int bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(ptx::shared_address(shared)), "l"(global), "r"(bytes)
               : "memory");
}

// COUNT pieces, TO bytes apart there and FROM bytes apart here: all of two addresses, by offsets that instructions have room for
template <int COUNT, int TO, int FROM>
__device__ __forceinline__ void cp_async16_run(void* shared, const void* global) {
  unsigned to = ptx::shared_address(shared);
  asm volatile("" : "+r"(to), "+l"(global));
#pragma unroll
  for (int i = 0; i < COUNT; ++i)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + i * TO), "l"(static_cast<const char*>(global) + i * FROM)
                 : "memory");
}

__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// all groups but the newest PENDING are complete for this thread; others see them after a barrier
template <int PENDING>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// into the second-level cache, where all writes meet: no value is read, so it may come before the wait for a launch
__device__ __forceinline__ void prefetch(const void* p) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(p)));
}

template <class T>
__device__ __forceinline__ uint4 load16(const T* p) { return *reinterpret_cast<const uint4*>(p); }
template <class T>
__device__ __forceinline__ void store16(T* p, uint4 v) { *reinterpret_cast<uint4*>(p) = v; }
template <class T>
__device__ __forceinline__ uint2 load8(const T* p) { return *reinterpret_cast<const uint2*>(p); }
template <class T>
__device__ __forceinline__ void store8(T* p, uint2 v) { *reinterpret_cast<uint2*>(p) = v; }

// One access, to memory of any kind. A plain store of 16 bytes is cut into members where the compiler sees fit, as behind the
// scan's loop over tokens: then every sector is written in parts.
__device__ __forceinline__ void store_whole(void* p, uint4 v) {
  asm volatile("st.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
__device__ __forceinline__ void store_whole(void* p, uint2 v) {
  asm volatile("st.v2.u32 [%0], {%1, %2};" ::"l"(p), "r"(v.x), "r"(v.y) : "memory");
}
__device__ __forceinline__ void store_whole(void* p, unsigned v) { *static_cast<unsigned*>(p) = v; }
__device__ __forceinline__ void store_whole(void* p, unsigned short v) { *static_cast<unsigned short*>(p) = v; }

// memory that is not touched again before much else is: it need not stay in a cache, and what is written leaves it early
template <class Word>
__device__ __forceinline__ Word load_once(const Word* p) { return __ldcs(p); }
template <class Word>
__device__ __forceinline__ void store_once(void* p, Word v) { __stcs(static_cast<Word*>(p), v); }

__device__ __forceinline__ void named_barrier(unsigned id, unsigned threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// reductions over a warp, N values at a time, by the tree of xor distances 16, 8, 4, 2, 1
template <int N>
__device__ __forceinline__ void warp_sum(float (&v)[N]) {
#pragma unroll
  for (int distance = 16; distance; distance /= 2)
#pragma unroll
    for (int i = 0; i < N; ++i) v[i] += __shfl_xor_sync(0xFFFFFFFFu, v[i], distance);
}

// M sets of N sums at once, N a power of two up to 64, by the same tree. Lane l is left with those of items first,
// first + 1, .. in v[i][0], v[i][1], .. where first = l * N / 32: N / 32 of them, or one. At each distance it keeps half of
// what it holds and gives the rest to its partner, whose sums they are: each step adds the two numbers that the tree adds,
// and 8 sums take 9 shuffles, not 40. v[i][k] is what the lane adds to item k ^ first if PLACED: it keeps the first half;
// else to item k, and it selects the half.
template <bool PLACED = true, int DISTANCE = 16, int M, int N>
__device__ __forceinline__ void warp_sum_items(float (&v)[M][N]) {
  constexpr int HALF = N * DISTANCE / 32;
  const bool upper = !PLACED && HALF && threadIdx.x & DISTANCE;
#pragma unroll
  for (int i = 0; i < M; ++i)
#pragma unroll
    for (int k = 0; k < (HALF ? HALF : 1); ++k) {
      const float keep = upper ? v[i][k + HALF] : v[i][k], give = upper ? v[i][k] : v[i][k + HALF];
      v[i][k] = keep + __shfl_xor_sync(0xFFFFFFFFu, give, DISTANCE);
    }
  if constexpr (DISTANCE > 1) warp_sum_items<PLACED, DISTANCE / 2>(v);
}

// N sums of a and N of b in one go, value i of either belonging to sum scattered(i, l): lane l gets sum scattered(0, l) of b
// where l % (32 / N) >= 16 / N, and of a elsewhere
template <int DISTANCE = 16, int N>
__device__ __forceinline__ float warp_sum_scattered(const float (&a)[N], const float (&b)[N]) {
  if constexpr (N > 1) {
    float of_a[N / 2], of_b[N / 2];
#pragma unroll
    for (int i = 0; i < N / 2; ++i) of_a[i] = a[i] + __shfl_xor_sync(0xFFFFFFFFu, a[N / 2 + i], DISTANCE);
#pragma unroll
    for (int i = 0; i < N / 2; ++i) of_b[i] = b[i] + __shfl_xor_sync(0xFFFFFFFFu, b[N / 2 + i], DISTANCE);
    return warp_sum_scattered<DISTANCE / 2>(of_a, of_b);
  } else {
    const bool keeps_b = threadIdx.x & DISTANCE;
    const float kept = keeps_b ? b[0] : a[0], sent = keeps_b ? a[0] : b[0];
    float one[1][1] = {kept + __shfl_xor_sync(0xFFFFFFFFu, sent, DISTANCE)};
    if constexpr (DISTANCE > 1) warp_sum_items<true, DISTANCE / 2>(one);
    return one[0][0];
  }
}

// the way back: every lane gets in v[i] what the lanes that own sum `of(i)` give; of a, where there are two
template <int N, typename INDEX>
__device__ __forceinline__ void warp_share(float own, float (&v)[N], INDEX of) {
#pragma unroll
  for (int i = 0; i < N; ++i) v[i] = __shfl_sync(0xFFFFFFFFu, own, of(i) * (32 / N));
}

template <int N>
__device__ __forceinline__ void warp_max_nan(float (&v)[N]) {
#pragma unroll
  for (int distance = 16; distance; distance /= 2)
#pragma unroll
    for (int i = 0; i < N; ++i) v[i] = maximum(v[i], __shfl_xor_sync(0xFFFFFFFFu, v[i], distance));
}

__device__ __forceinline__ float warp_sum(float x) {
  float v[1] = {x};
  warp_sum(v);
  return v[0];
}

__device__ __forceinline__ float warp_max_nan(float x) {
  float v[1] = {x};
  warp_max_nan(v);
  return v[0];
}

// a value that the compiler knows nothing about: what depends on it is computed where it stands, not kept in registers
__device__ __forceinline__ int opaque(int x) {
  asm volatile("" : "+r"(x));
  return x;
}

// The same of an address in shared memory. From Hopper on the compiler asks for the block's place in its cluster wherever it
// finds such an address anew, and waits for the answer.
template <class T>
__device__ __forceinline__ T* kept(T* shared) {
  unsigned address = ptx::shared_address(shared);
  asm volatile("" : "+r"(address));
  return static_cast<T*>(__cvta_shared_to_generic(address));
}

// maximum() of two sizes: neither is negative, not even a zero, so that one instruction is it
__device__ __forceinline__ float maximum_size(float a, float b) {
  float m;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(m) : "f"(a), "f"(b));
  return m;
}

// ---- dependent launch, from Hopper on; elsewhere a launch starts when the one ahead of it has ended

// everything before this launch is complete and visible
__device__ __forceinline__ void await_launches_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// the next launch may start its blocks as soon as every block of this one has said so or has ended
__device__ __forceinline__ void admit_next_launch() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace lane
