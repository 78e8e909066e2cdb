#pragma once
// The names of CUDA C++ that kernels may use, for the host. A name that is not here does not compile: the host device
// models what is listed and nothing else.
#include "machine.h"

#define __global__ static
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(n) alignas(n)
#define __constant__ static const

namespace lane_rt {
static Machine* machine;  // set once when the library is loaded
}

#define threadIdx (lane_rt::machine->current->thread)
#define blockIdx (lane_rt::machine->current->block->index)
#define blockDim (lane_rt::machine->block_dim)
#define gridDim (lane_rt::machine->grid)

#define LANE_SITE const char *file = __builtin_FILE(), int line = __builtin_LINE()

using dim3 = lane_rt::Dim3;

#define LANE_VECTOR(type, name, size)                                                                  \
  struct alignas(2 * sizeof(type)) name##2 { type x, y; };                                             \
  struct name##3 { type x, y, z; };                                                                    \
  struct alignas(size) name##4 { type x, y, z, w; };                                                   \
  inline name##2 make_##name##2(type x, type y) { return {x, y}; }                                     \
  inline name##3 make_##name##3(type x, type y, type z) { return {x, y, z}; }                          \
  inline name##4 make_##name##4(type x, type y, type z, type w) { return {x, y, z, w}; }
LANE_VECTOR(float, float, 16)
LANE_VECTOR(int, int, 16)
LANE_VECTOR(unsigned, uint, 16)
LANE_VECTOR(signed char, char, 4)
LANE_VECTOR(unsigned char, uchar, 4)
LANE_VECTOR(short, short, 8)
LANE_VECTOR(unsigned short, ushort, 8)
#undef LANE_VECTOR
struct alignas(16) double2 { double x, y; };
inline double2 make_double2(double x, double y) { return {x, y}; }

// correctly rounded on both devices; the compiler knows them and emits single instructions
extern "C" float fmaf(float, float, float) noexcept;
extern "C" float rintf(float) noexcept;
extern "C" float sqrtf(float) noexcept;
extern "C" float fabsf(float) noexcept;
extern "C" double fma(double, double, double) noexcept;
extern "C" double rint(double) noexcept;
extern "C" double sqrt(double) noexcept;
extern "C" double fabs(double) noexcept;

inline int min(int a, int b) { return b < a ? b : a; }
inline int max(int a, int b) { return a < b ? b : a; }
inline unsigned min(unsigned a, unsigned b) { return b < a ? b : a; }
inline unsigned max(unsigned a, unsigned b) { return a < b ? b : a; }
inline long long min(long long a, long long b) { return b < a ? b : a; }
inline long long max(long long a, long long b) { return a < b ? b : a; }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __clz(int x) { return x ? __builtin_clz(static_cast<unsigned>(x)) : 32; }
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const unsigned long long both = static_cast<unsigned long long>(y) << 32 | x;
  unsigned out = 0;
  for (int i = 0; i < 4; ++i) out |= static_cast<unsigned>(both >> 8 * (selector >> 4 * i & 7u) & 0xFFu) << 8 * i;
  return out;
}
inline float __uint_as_float(unsigned x) { return __builtin_bit_cast(float, x); }
inline float __int_as_float(int x) { return __builtin_bit_cast(float, x); }
inline unsigned __float_as_uint(float x) { return __builtin_bit_cast(unsigned, x); }
inline int __float_as_int(float x) { return __builtin_bit_cast(int, x); }

inline void __syncthreads(LANE_SITE) { lane_rt::machine->barrier(0, 0, {"__syncthreads", file, line}); }
inline void __threadfence() {}
inline void __threadfence_block() {}

// integer atomics; one OS thread runs all fibers, so a plain update is atomic
#define LANE_ATOMIC(name, type, update)                  \
  inline type name(type* at, type value) {               \
    ++lane_rt::machine->count.atomics;                   \
    const type old = *at;                                \
    *at = update;                                        \
    return old;                                          \
  }
#define LANE_ATOMICS(type)                               \
  LANE_ATOMIC(atomicAdd, type, old + value)              \
  LANE_ATOMIC(atomicMax, type, old < value ? value : old) \
  LANE_ATOMIC(atomicMin, type, value < old ? value : old) \
  LANE_ATOMIC(atomicOr, type, old | value)               \
  LANE_ATOMIC(atomicAnd, type, old & value)              \
  LANE_ATOMIC(atomicExch, type, value)
LANE_ATOMICS(int)
LANE_ATOMICS(unsigned)
LANE_ATOMICS(unsigned long long)
#undef LANE_ATOMICS
#undef LANE_ATOMIC
