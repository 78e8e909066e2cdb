#pragma once
// The host bodies of what only Hopper has (kernels/hopper.cuh says what each does).

namespace lane {

inline void barrier_init(barrier_t* b, unsigned arrivals) { lane_rt::machine->barrier_init(b, arrivals); }
inline void barrier_publish() {}
inline void barrier_arrive(barrier_t* b) { lane_rt::machine->barrier_arrive(b, 0); }
inline void cp_async_arrive(barrier_t* b) { lane_rt::machine->copy_arrive(b); }
inline bool elected() { return threadIdx.x % 32 == 0; }
inline void barrier_expect(barrier_t* b, unsigned bytes) { lane_rt::machine->barrier_arrive(b, bytes); }

inline void barrier_wait(barrier_t* b, unsigned parity, LANE_SITE) {
  while (!lane_rt::machine->barrier_done(b, parity)) lane_rt::machine->poll({"barrier_wait", file, line});
}

template <bool ONCE = true>
inline void bulk_copy(void* shared, const void* global, unsigned bytes, barrier_t* b) {
  lane_rt::machine->bulk_copy(shared, global, bytes, b, ONCE);
}

inline void fence_proxy() { lane_rt::machine->fence_proxy(); }

inline unsigned cluster_rank() { return lane_rt::machine->current->block->rank; }
inline unsigned cluster_blocks() { return lane_rt::machine->cluster_dim.x; }
inline void cluster_barrier(LANE_SITE) { lane_rt::machine->cluster_barrier({"cluster_barrier", file, line}); }

template <class T>
inline T* of_block(T* p, unsigned rank) {
  return reinterpret_cast<T*>(lane_rt::machine->of_block(const_cast<char*>(reinterpret_cast<const char*>(p)), rank));
}

template <bool CLUSTER>
inline void raise_flag(unsigned* flag, unsigned value) {
  lane_rt::machine->check_raised(flag, CLUSTER);
  *flag = value;
  ++lane_rt::machine->progress;
}

template <bool CLUSTER>
inline void await_flag(const unsigned* flag, unsigned value, LANE_SITE) {
  while (*flag != value) lane_rt::machine->poll({"await_flag", file, line});
}

inline void post(unsigned long long* slot, float value) {
  lane_rt::machine->check_raised(slot, true);
  *slot = 1ull << 32 | bits(value);
  ++lane_rt::machine->progress;
}

inline float await_post(const unsigned long long* slot, LANE_SITE) {
  while (*slot >> 32 == 0) lane_rt::machine->poll({"await_post", file, line});
  return from_bits(static_cast<unsigned>(*slot));
}

// ---- products of a warpgroup: harness/host/runtime/wgmma.cpp

inline unsigned shared_offset(const void* p) { return lane_rt::machine->shared_offset(p); }

template <int N>
inline void keep_registers() {}
template <int N>
inline void take_registers() {}

inline void wgmma_fence(LANE_SITE) {
  lane_rt::exchange(lane_rt::ALL, 0, {"wgmma_fence", file, line}, [](lane_rt::Meeting&) { lane_rt::machine->wgmma_fence(); });
}

template <bool ADD, int N>
inline void wgmma_s8(int (&d)[N], const unsigned (&a)[4], unsigned long long b, LANE_SITE) {
  const unsigned lane = lane_rt::my_lane();
  lane_rt::meet_all(
      {"wgmma_s8", file, line},
      [&](lane_rt::FullMeeting& m) { m.word[lane] = b, m.registers[lane] = {d, a}; },
      [](lane_rt::FullMeeting& m) { lane_rt::machine->wgmma_s8(m, 2 * N, ADD); });
}

inline void wgmma_commit(LANE_SITE) {
  lane_rt::exchange(lane_rt::ALL, 0, {"wgmma_commit", file, line}, [](lane_rt::Meeting&) { lane_rt::machine->wgmma_commit(); });
}

template <int PENDING, int N>
inline void wgmma_wait(int (&d)[N], LANE_SITE) {
  lane_rt::exchange(lane_rt::ALL, 0, {"wgmma_wait", file, line}, [](lane_rt::Meeting&) { lane_rt::machine->wgmma_wait(PENDING); });
  lane_rt::machine->wgmma_check(d);
}

}  // namespace lane
