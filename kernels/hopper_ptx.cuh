#pragma once
// The GPU bodies of what only Hopper has (sm_90a).

namespace lane {

// ---- barriers in shared memory

__device__ __forceinline__ void barrier_init(barrier_t* b, unsigned arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(ptx::shared_address(b)), "r"(arrivals) : "memory");
}

// barriers of this thread can be named to the copy engine, and by other blocks of the cluster
__device__ __forceinline__ void barrier_publish() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

__device__ __forceinline__ void barrier_arrive(barrier_t* b) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(ptx::shared_address(b)) : "memory");
}

// arrives when all copies of this thread so far are there, and does not wait for them
__device__ __forceinline__ void cp_async_arrive(barrier_t* b) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(ptx::shared_address(b)) : "memory");
}

// arrives, and announces bytes that copies will bring
__device__ __forceinline__ void barrier_expect(barrier_t* b, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(ptx::shared_address(b)), "r"(bytes) : "memory");
}

__device__ __forceinline__ void barrier_wait(barrier_t* b, unsigned parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra.uni over;\n"
      "bra.uni again;\n"
      "over:\n"
      "}" ::"r"(ptx::shared_address(b)), "r"(parity)
      : "memory");
}

// one thread of a whole warp, which the compiler knows to be one
__device__ __forceinline__ bool elected() {
  unsigned yes;
  asm volatile(
      "{\n"
      ".reg .pred one;\n"
      "elect.sync _|one, 0xFFFFFFFF;\n"
      "selp.u32 %0, 1, 0, one;\n"
      "}"
      : "=r"(yes));
  return yes != 0;
}

// ---- the copy engine: sizes and addresses are multiples of 16; what is read ONCE leaves L2 first

template <bool ONCE = true>
__device__ __forceinline__ void bulk_copy(void* shared, const void* global, unsigned bytes, barrier_t* b) {
  if constexpr (ONCE) {
    unsigned long long policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(
                     ptx::shared_address(shared)),
                 "l"(global), "r"(bytes), "r"(ptx::shared_address(b)), "l"(policy)
                 : "memory");
  } else {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     ptx::shared_address(shared)),
                 "l"(global), "r"(bytes), "r"(ptx::shared_address(b))
                 : "memory");
  }
}

// shared memory that this thread wrote is seen by the copy engine and by wgmma
__device__ __forceinline__ void fence_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// ---- clusters

__device__ __forceinline__ unsigned cluster_rank() {
  unsigned r;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
  return r;
}

__device__ __forceinline__ unsigned cluster_blocks() {
  unsigned n;
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(n));
  return n;
}

__device__ __forceinline__ void cluster_barrier() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// where the block of that rank has what this block has at p
template <class T>
__device__ __forceinline__ T* of_block(T* p, unsigned rank) {
  unsigned long long there;
  asm("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(p), "r"(rank));
  return reinterpret_cast<T*>(there);
}

// ---- flags in shared memory: what a thread wrote before it raised one is seen by who awaited it

template <bool CLUSTER>
__device__ __forceinline__ void raise_flag(unsigned* flag, unsigned value) {
  if constexpr (CLUSTER) asm volatile("st.release.cluster.u32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
  else asm volatile("st.release.cta.shared::cta.u32 [%0], %1;" ::"r"(ptx::shared_address(flag)), "r"(value) : "memory");
}

// This block's own flag; raised by any block of the cluster or by this one only. Who finds it down sleeps for a moment: a
// warp that polls takes issue slots from those that work.
template <bool CLUSTER>
__device__ __forceinline__ void await_flag(const unsigned* flag, unsigned value) {
  for (unsigned seen;;) {
    if constexpr (CLUSTER)
      asm volatile("ld.acquire.cluster.shared::cta.u32 %0, [%1];" : "=r"(seen) : "r"(ptx::shared_address(flag)) : "memory");
    else asm volatile("ld.acquire.cta.shared::cta.u32 %0, [%1];" : "=r"(seen) : "r"(ptx::shared_address(flag)) : "memory");
    if (seen == value) return;
    asm volatile("nanosleep.u32 40;");
  }
}

// ---- posts in shared memory: a float and the sign that it has come are one word of 64 bits, 0 before, so that neither
// side needs a fence (a release to a cluster waits for every store of the thread that is under way)

__device__ __forceinline__ void post(unsigned long long* slot, float value) {
  asm volatile("st.relaxed.cluster.b64 [%0], %1;" ::"l"(slot), "l"(1ull << 32 | bits(value)) : "memory");
}

// this block's own slot, filled by any block of the cluster
__device__ __forceinline__ float await_post(const unsigned long long* slot) {
  unsigned long long seen;
  do {
    asm volatile("ld.relaxed.cluster.shared::cta.b64 %0, [%1];" : "=l"(seen) : "r"(ptx::shared_address(slot)) : "memory");
  } while (seen >> 32 == 0);
  return from_bits(static_cast<unsigned>(seen));
}

}  // namespace lane
