#pragma once
// The host bodies of namespace lane: what is PTX on a GPU.
#include "collectives.h"

// a declaration of shared memory; the static inside is unique to the declaration and to the template instantiation
#define SHARED_ALIGNED(alignment, type, name, ...)                                                                    \
  using name##_type = type __VA_ARGS__;                                                                               \
  static lane_rt::SharedArray name##_array{#name, __FILE__, __LINE__, sizeof(name##_type), alignment};                \
  name##_type& name = *reinterpret_cast<name##_type*>(lane_rt::shared(name##_array))
#define SHARED(type, name, ...) SHARED_ALIGNED(alignof(type), type, name, __VA_ARGS__)
#define DYNAMIC_SHARED_ALIGNED(alignment, type, name) type* name = reinterpret_cast<type*>(lane_rt::dynamic(alignment))
#define DYNAMIC_SHARED(type, name) DYNAMIC_SHARED_ALIGNED(16, type, name)

namespace lane_rt {

inline char* shared(SharedArray& a) {
  if (__builtin_expect(a.launch != machine->launch, 0)) machine->place_shared(&a);
  return a.address + machine->current->block->rank * a.stride;
}

inline char* dynamic(unsigned alignment) { return machine->dynamic_shared(alignment); }

inline void aligned(const void* p, unsigned bytes, const char* what) {
  if (__builtin_expect(reinterpret_cast<unsigned long>(p) % bytes, 0))
    machine->fail(MISUSE, "%s of a misaligned address", what);
}

// An instruction that names a state space takes an address of that space: on a GPU any other is illegal, or another place.
inline void require_global(const void* p, const char* what) {
  if (__builtin_expect(machine->is_shared(static_cast<const char*>(p)), 0))
    machine->fail(MISUSE, "%s global memory, and its address is in shared memory", what);
}
inline void require_shared(const void* p, const char* what) {
  auto* at = static_cast<const char*>(p);
  const bool is_last = at >= machine->shared_low && at < machine->shared_high;
  if (__builtin_expect(!is_last && !machine->is_shared(at), 0))
    machine->fail(MISUSE, "%s shared memory, and its address is not there", what);
}

}  // namespace lane_rt

namespace lane {

__forceinline__ int dp4a(int a, int b, int c) {
  ++lane_rt::machine->count.dp4a;
  for (int i = 0; i < 32; i += 8) c += static_cast<signed char>(a >> i) * static_cast<signed char>(b >> i);
  return c;
}

__forceinline__ unsigned and_xor(unsigned x, unsigned kept, unsigned turned) { return (x & kept) ^ turned; }

template <class Finish>
inline const lane_rt::FullMeeting& product(const unsigned (&a)[4], const unsigned (&b)[2], const lane_rt::Site& site, Finish finish) {
  const unsigned g = lane_rt::my_lane() / 4, t = lane_rt::my_lane() % 4;
  return lane_rt::meet_all(site, [&](lane_rt::FullMeeting& m) {
    lane_rt::Fragments8& f = m.product.operands;
    f.a[g][t] = a[0];
    f.a[g + 8][t] = a[1];
    f.a[g][t + 4] = a[2];
    f.a[g + 8][t + 4] = a[3];
    f.b[t][g] = b[0];
    f.b[t + 4][g] = b[1];
  }, finish);
}

inline void mma_s8(int (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2], LANE_SITE) {
  const unsigned g = lane_rt::my_lane() / 4, t = lane_rt::my_lane() % 4;
  const lane_rt::FullMeeting& m = product(a, b, {"mma_s8", file, line}, [](lane_rt::FullMeeting& m) {
    ++lane_rt::machine->count.mma_s8;
    lane_rt::machine->product_s8(m.product.operands, m.product.ints);
  });
  for (int i = 0; i < 4; ++i) d[i] += m.product.ints[g + i / 2 * 8][2 * t + i % 2];
}

inline void mma_s8(int (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2], int c, LANE_SITE) {
  for (int& value : d) value = c;
  mma_s8(d, a, b, file, line);
}

inline void mma_e4m3(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2], LANE_SITE) {
  const unsigned g = lane_rt::my_lane() / 4, t = lane_rt::my_lane() % 4;
  const lane_rt::FullMeeting& m = product(a, b, {"mma_e4m3", file, line}, [](lane_rt::FullMeeting& m) {
    ++lane_rt::machine->count.mma_e4m3;
    lane_rt::machine->product_e4m3(m.product.operands, m.product.doubles);
  });
  for (int i = 0; i < 4; ++i) d[i] = static_cast<float>(d[i] + m.product.doubles[g + i / 2 * 8][2 * t + i % 2]);
}

// lane 8 i + r gives the address of row r of matrix i; transposed: lane l gets elements [2 (l % 4)][l / 4] and the next
template <int N, bool TRANSPOSED>
inline void ldmatrix(unsigned (&r)[N], const void* shared, const lane_rt::Site& site) {
  const unsigned lane = lane_rt::my_lane();
  lane_rt::aligned(shared, 16, site.what);
  lane_rt::require_shared(shared, "ldmatrix reads");
  const lane_rt::FullMeeting& m = lane_rt::meet_all(
      site, [=](lane_rt::FullMeeting& m) { m.word[lane] = reinterpret_cast<unsigned long>(shared); },
      [](lane_rt::FullMeeting& m) {
        ++lane_rt::machine->count.ldmatrix;
        for (int i = 0; i < 8 * N; ++i) __builtin_memcpy(m.rows[i], reinterpret_cast<const void*>(m.word[i]), 16);
      });
  for (int i = 0; i < N; ++i) {
    if constexpr (TRANSPOSED) {
      const unsigned short* low = reinterpret_cast<const unsigned short*>(m.rows[8 * i + lane % 4 * 2]);
      r[i] = low[lane / 4] | static_cast<unsigned>(low[8 + lane / 4]) << 16;
    } else {
      r[i] = m.rows[8 * i + lane / 4][lane % 4];
    }
  }
}
#define LANE_LDMATRIX(n)                                                                                         \
  inline void ldmatrix_x##n(unsigned (&r)[n], const void* shared, LANE_SITE) {                                   \
    ldmatrix<n, false>(r, shared, {"ldmatrix", file, line});                                                     \
  }                                                                                                              \
  inline void ldmatrix_x##n##_trans(unsigned (&r)[n], const void* shared, LANE_SITE) {                           \
    ldmatrix<n, true>(r, shared, {"ldmatrix_trans", file, line});                                                \
  }
LANE_LDMATRIX(1)
LANE_LDMATRIX(2)
LANE_LDMATRIX(4)
#undef LANE_LDMATRIX

inline void cp_async16(void* shared, const void* global, int bytes) {
  lane_rt::machine->copy_async(shared, global, 16, static_cast<unsigned>(bytes));
}
// the usual copy, done here when it is eager, aligned and into the same array as the one before
inline void cp_async16(void* shared, const void* global) {
  lane_rt::Machine& m = *lane_rt::machine;
  char* to = static_cast<char*>(shared);
  const bool is_aligned = !((reinterpret_cast<unsigned long>(shared) | reinterpret_cast<unsigned long>(global)) % 16);
  if (!m.eager || !is_aligned || to < m.shared_low || to >= m.shared_high) return m.copy_async(shared, global, 16, 16);
  lane_rt::require_global(global, "cp.async reads");
  ++m.count.cp_async;
  m.count.cp_async_bytes += 16;
  __builtin_memcpy(shared, global, 16);
}
template <int COUNT, int TO, int FROM>
inline void cp_async16_run(void* shared, const void* global) {
  for (int i = 0; i < COUNT; ++i) cp_async16(static_cast<char*>(shared) + i * TO, static_cast<const char*>(global) + i * FROM);
}
inline void cp_async4(void* shared, const void* global, int bytes = 4) {
  lane_rt::machine->copy_async(shared, global, 4, static_cast<unsigned>(bytes));
}
inline void cp_async_commit() { lane_rt::machine->copy_commit(); }
template <int PENDING>
inline void cp_async_wait() { lane_rt::machine->copy_wait(PENDING); }

template <class T>
__forceinline__ uint4 load16(const T* p) {
  ++lane_rt::machine->count.load16;
  lane_rt::aligned(p, 16, "load of 16 bytes");
  return *reinterpret_cast<const uint4*>(p);
}
template <class T>
__forceinline__ void store16(T* p, uint4 v) {
  ++lane_rt::machine->count.store16;
  lane_rt::aligned(p, 16, "store of 16 bytes");
  *reinterpret_cast<uint4*>(p) = v;
}

template <class Word>
__forceinline__ void store_whole(void* p, Word v) {
  lane_rt::aligned(p, sizeof(Word), "store of a whole word");
  *static_cast<Word*>(p) = v;
}

template <class Word>
__forceinline__ Word load_once(const Word* p) {
  lane_rt::aligned(p, sizeof(Word), "load of a whole word");
  return *p;
}
template <class Word>
__forceinline__ void store_once(void* p, Word v) { store_whole(p, v); }

inline void named_barrier(unsigned id, unsigned threads, LANE_SITE) {
  lane_rt::machine->barrier(id, threads, {"named_barrier", file, line});
}

inline void prefetch(const void* p) { lane_rt::require_global(p, "prefetch reads"); }

template <class T>
__forceinline__ uint2 load8(const T* p) {
  lane_rt::aligned(p, 8, "load of 8 bytes");
  return *reinterpret_cast<const uint2*>(p);
}
template <class T>
__forceinline__ void store8(T* p, uint2 v) {
  lane_rt::aligned(p, 8, "store of 8 bytes");
  *reinterpret_cast<uint2*>(p) = v;
}

// N reductions over the warp by the tree of xor distances 16, 8, 4, 2, 1. Each step combines the same two numbers in
// both lanes, so all lanes end with the same bits and one lane may do it for all.
template <int N, class Combine>
inline void warp_tree(float (&v)[N], int shuffles, const lane_rt::Site& site, Combine combine) {
  static_assert(N <= lane_rt::MAX_BULK, "a warp reduces at most 64 values at once");
  const unsigned lane = lane_rt::my_lane();
  const lane_rt::FullMeeting& m = lane_rt::meet_all(
      site, [&](lane_rt::FullMeeting& m) { for (int i = 0; i < N; ++i) m.values[i][lane] = v[i]; },
      [=](lane_rt::FullMeeting& m) {
        lane_rt::machine->count.shuffles += shuffles;
        for (int i = 0; i < N; ++i) {
          float* x = m.values[i];
          for (int distance = 16; distance; distance /= 2)
            for (int j = 0; j < distance; ++j) x[j] = combine(x[j], x[j + distance]);
          m.result[i] = x[0];
        }
      });
  for (int i = 0; i < N; ++i) v[i] = m.result[i];
}

template <int N>
inline void warp_sum(float (&v)[N], LANE_SITE) {
  warp_tree(v, 5 * N, {"warp_sum", file, line}, [](float a, float b) { return a + b; });
}

// the shuffles of N sums of which each lane keeps half where it can
constexpr int halving_shuffles(int N) {
  int shuffles = 0;
  for (int distance = 16, n = N / 2; distance; distance /= 2, n /= 2) shuffles += n ? n : 1;
  return shuffles;
}

// see kernels/device_ptx.cuh
template <int N>
inline float warp_sum_scattered(const float (&a)[N], const float (&b)[N], LANE_SITE) {
  const int lane = static_cast<int>(lane_rt::my_lane()), own = scattered<N>(0, lane);
  float both[2 * N];
  for (int i = 0; i < N; ++i) both[scattered<N>(i, lane)] = a[i], both[N + scattered<N>(i, lane)] = b[i];
  warp_tree(both, halving_shuffles(2 * N), {"warp_sum_scattered", file, line}, [](float x, float y) { return x + y; });
  return both[lane % (32 / N) >= 16 / N ? N + own : own];
}

template <int N, class Index>
inline void warp_share(float own, float (&v)[N], Index of, LANE_SITE) {
  const int lane = static_cast<int>(lane_rt::my_lane());
  const lane_rt::FullMeeting& m = lane_rt::meet_all(
      {"warp_share", file, line}, [&](lane_rt::FullMeeting& m) { m.values[0][lane] = own; },
      [](lane_rt::FullMeeting& m) {
        lane_rt::machine->count.shuffles += N;
        for (int i = 0; i < N; ++i) m.result[i] = m.values[0][i * (32 / N)];
      });
  for (int i = 0; i < N; ++i) v[i] = m.result[of(i)];
}

template <bool PLACED = true, int M, int N>
inline void warp_sum_items(float (&v)[M][N], LANE_SITE) {
  static_assert(M * N <= lane_rt::MAX_BULK, "a warp reduces at most 64 values at once");
  static_assert((N & (N - 1)) == 0, "items halve at each level: their number is a power of two");
  const unsigned lane = lane_rt::my_lane(), first = lane * N / 32;
  const lane_rt::FullMeeting& m = lane_rt::meet_all(
      {"warp_sum_items", file, line},
      [&](lane_rt::FullMeeting& m) {
        for (int i = 0; i < M; ++i)
          for (unsigned k = 0; k < N; ++k) m.values[i * N + (PLACED ? k ^ first : k)][lane] = v[i][k];
      },
      [](lane_rt::FullMeeting& m) {
        for (int half = N / 2, distance = 16; distance; half /= 2, distance /= 2)
          lane_rt::machine->count.shuffles += M * (half ? half : 1);
        for (int i = 0; i < M * N; ++i) {
          float* x = m.values[i];
          for (int distance = 16; distance; distance /= 2)
            for (int j = 0; j < distance; ++j) x[j] = x[j] + x[j + distance];
          m.result[i] = x[0];
        }
      });
  // what a GPU leaves in the rest is of no use
  for (int i = 0; i < M; ++i)
    for (unsigned k = 0; k < N; ++k) v[i][k] = k < (N < 32 ? 1 : N / 32) ? m.result[i * N + first + k] : from_bits(0x7FC00000u);
}

template <int N>
inline void warp_max_nan(float (&v)[N], LANE_SITE) {
  warp_tree(v, 5 * N, {"warp_max_nan", file, line}, [](float a, float b) { return maximum(a, b); });
}

inline float warp_sum(float x, LANE_SITE) {
  float v[1] = {x};
  warp_sum(v, file, line);
  return v[0];
}

inline float warp_max_nan(float x, LANE_SITE) {
  float v[1] = {x};
  warp_max_nan(v, file, line);
  return v[0];
}

inline int opaque(int x) { return x; }
template <class T>
T* kept(T* shared) {
  return shared;
}

inline float maximum_size(float a, float b) {
  const unsigned signs = (is_nan(a) ? 0 : bits(a)) | (is_nan(b) ? 0 : bits(b));
  if (signs >> 31) lane_rt::machine->fail(lane_rt::MISUSE, "a size is negative");
  return maximum(a, b);
}

// launches run one after another: the order is all there is, and who has admitted the next is counted
inline void await_launches_before() {}
inline void admit_next_launch() {
  lane_rt::Fiber& self = *lane_rt::machine->current;
  lane_rt::machine->count.admitted += !self.admitted;
  self.admitted = true;
}

}  // namespace lane
