// One launch from start to end, with the floating-point control register set and checked around it.
#include <stdlib.h>
#include <string.h>

#include "runtime.h"

namespace lane_rt {

Machine machine;
Running running;

#if defined(__x86_64__)
using Control = unsigned;
constexpr Control DEFAULT_CONTROL = 0x1F80;  // all exceptions masked, nearest even, no flushing of denormals
constexpr Control CONTROL_BITS = 0xFFC0;     // without the sticky flags
static Control get_control() { return __builtin_ia32_stmxcsr(); }
static void set_control(Control c) { __builtin_ia32_ldmxcsr(c); }
#elif defined(__aarch64__)
using Control = uint64_t;
constexpr Control DEFAULT_CONTROL = 0, CONTROL_BITS = ~Control{0};
static Control get_control() {
  Control c;
  asm volatile("mrs %0, fpcr" : "=r"(c));
  return c;
}
static void set_control(Control c) { asm volatile("msr fpcr, %0" ::"r"(c)); }
#else
using Control = unsigned;
constexpr Control DEFAULT_CONTROL = 0, CONTROL_BITS = 0;
static Control get_control() { return 0; }
static void set_control(Control) {}
#endif

static Block blocks[MAX_CLUSTER];

static void make_block(Block& b, unsigned rank) {
  b.rank = rank;
  if (b.fibers) return;
  b.fibers = static_cast<Fiber*>(calloc(MAX_THREADS, sizeof(Fiber)));
  b.warps = static_cast<Warp*>(calloc(MAX_WARPS, sizeof(Warp)));
  auto* full = static_cast<FullMeeting*>(aligned_alloc(alignof(FullMeeting), sizeof(FullMeeting) * 2 * MAX_WARPS));
  for (unsigned w = 0; w < MAX_WARPS; ++w) {
    b.warps[w].index = w;
    b.warps[w].block = &b;
    b.warps[w].fibers = b.fibers + w * WARP;
    b.warps[w].full = full + 2 * w;
  }
  for (unsigned t = 0; t < MAX_THREADS; ++t) {
    Fiber& f = b.fibers[t];
    f.block = &b;
    f.warp = &b.warps[t / WARP];
    f.lane = t % WARP;
    f.bit = 1u << f.lane;
  }
}

static bool launch_is_possible(const Launch& l, int arguments) {
  const uint64_t threads = uint64_t{l.block[0]} * l.block[1] * l.block[2];
  const uint64_t grid = uint64_t{l.grid[0]} * l.grid[1] * l.grid[2];
  if (!threads || threads > MAX_THREADS) fail_outside(MISUSE, "a block of %llu threads is not possible", (unsigned long long)threads);
  else if (!grid || grid >> 32 || l.grid[1] > 65535 || l.grid[2] > 65535)
    fail_outside(MISUSE, "a grid of (%u, %u, %u) blocks is not possible", l.grid[0], l.grid[1], l.grid[2]);
  else if (!l.cluster || l.cluster > MAX_CLUSTER || l.grid[0] % l.cluster)
    fail_outside(MISUSE, "a grid of %u blocks along x is not made of clusters of %u", l.grid[0], l.cluster);
  else if (l.smem > DYNAMIC_SHARED)
    fail_outside(MISUSE, "%u bytes of dynamic shared memory are more than the %zu a GPU has", l.smem, DYNAMIC_SHARED);
  else if (arguments > MAX_ARGUMENTS)
    fail_outside(MISUSE, "a kernel of %d arguments is not possible; there is room for %d", arguments, MAX_ARGUMENTS);
  return !running.failure;
}

static void prepare(const Launch& l) {
  running.launch = &l;
  running.failure = NONE;
  running.schedule.state = l.schedule_seed;
  running.copies.state = l.copies_seed;
  running.threads = l.block[0] * l.block[1] * l.block[2];
  running.warps = (running.threads + WARP - 1) / WARP;
  running.blocks = blocks;
  machine.grid = {l.grid[0], l.grid[1], l.grid[2]};
  machine.block_dim = {l.block[0], l.block[1], l.block[2]};
  machine.cluster_dim = {l.cluster, 1, 1};
  memset(&machine.count, 0, sizeof machine.count);
  ++machine.launch;
  machine.eager = l.copies == EAGER;
  machine.fail = fail;
  machine.meeting_refused = meeting_refused;
  machine.part_meeting = part_meeting;
  machine.place_shared = place_shared;
  machine.dynamic_shared = dynamic_shared;
  machine.copy_async = copy_async;
  machine.copy_commit = copy_commit;
  machine.copy_wait = copy_wait;
  machine.copy_arrive = copy_arrive;
  machine.barrier_init = barrier_init;
  machine.barrier_arrive = barrier_arrive;
  machine.barrier_done = barrier_done;
  machine.bulk_copy = bulk_copy;
  machine.of_block = of_block;
  machine.check_raised = check_raised;
  machine.is_shared = is_shared;
  machine.fence_proxy = fence_proxy;
  machine.shared_offset = shared_offset;
  machine.wgmma_fence = wgmma_fence;
  machine.wgmma_s8 = wgmma_s8;
  machine.wgmma_commit = wgmma_commit;
  machine.wgmma_wait = wgmma_wait;
  machine.wgmma_check = wgmma_check;
  machine.product_s8 = product_s8;
  machine.product_e4m3 = product_e4m3;
  machine.stored = stored;
  begin_shared();
  forget_arrivals();
}

}  // namespace lane_rt

using namespace lane_rt;

// Returns a Failure; the sentence is in lanelock_message().
extern "C" int lanelock_launch(const Launch* launch, const uint64_t* values, int count) {
  prepare(*launch);
  if (!launch_is_possible(*launch, count)) return running.failure;
  for (int i = 0; i < count; ++i) running.arguments[i] = const_cast<uint64_t*>(values + i);
  for (unsigned r = 0; r < launch->cluster; ++r) make_block(blocks[r], r);
  const Control before = get_control();
  set_control(DEFAULT_CONTROL);
  catch_faults();
  running.active = true;
  run_grid();
  running.active = false;
  restore_faults();
  if ((get_control() & CONTROL_BITS) != (DEFAULT_CONTROL & CONTROL_BITS) && !running.failure)
    fail_outside(FLOATING_POINT, "the kernel changed the floating-point control register");
  set_control(before);
  return running.failure;
}

extern "C" const char* lanelock_message() { return running.message; }
extern "C" Machine* lanelock_machine() { return &machine; }
extern "C" const unsigned long long* lanelock_counters() { return reinterpret_cast<unsigned long long*>(&machine.count); }

extern "C" const char* lanelock_counter_names() {
#define LANELOCK_NAME(name) #name " "
  return LANELOCK_COUNTERS(LANELOCK_NAME);
}
