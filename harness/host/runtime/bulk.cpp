// Barriers in shared memory and the copy engine. Eager copies complete where they are issued. Late ones leave poison and
// complete exactly when a wait for their barrier's phase could not go on without them, so that a thread which waits for
// a phase long over reads poison every time. Random: any may also complete at any issue, arrival or wait.
#include <stdlib.h>
#include <string.h>

#include "runtime.h"

namespace lane_rt {

namespace {

struct BarrierState {  // what the eight bytes of a barrier hold
  uint16_t arrivals, pending;
  int32_t bytes_and_parity;  // announced and not yet copied, times 2, plus the parity of the phase that runs
  int bytes() const { return bytes_and_parity >> 1; }
  unsigned parity() const { return bytes_and_parity & 1; }
};
constexpr unsigned MOST_ARRIVALS = 0xFFFE;  // poison is one more: a barrier that nobody has set up
constexpr int MOST_BYTES = (1 << 20) - 1;

struct BulkCopy {
  char* to;
  const char* from;
  unsigned bytes;
  BarrierState* barrier;
  bool done;
};

struct Engine {
  BulkCopy* list;
  unsigned count, room;
} engine;

struct SetUp {
  const void** list;
  unsigned count, room;
} barriers;  // of the cluster

BarrierState& state_of(void* barrier) {
  auto* s = static_cast<BarrierState*>(barrier);
  unsigned rank;
  if (reinterpret_cast<uintptr_t>(barrier) % 8 || !array_of(static_cast<char*>(barrier), &rank))
    fail(MISUSE, "a barrier must lie in shared memory at a multiple of 8");
  if (s->arrivals == 0xFFFF) fail(MISUSE, "a barrier is used before it is set up");
  return *s;
}

void end_phase_if_complete(BarrierState& s) {
  if (s.pending || s.bytes()) return;
  s.pending = s.arrivals;
  s.bytes_and_parity ^= 1;
  ++machine.progress;
}

void add_bytes(BarrierState& s, int bytes) {
  const int sum = s.bytes() + bytes;
  if (sum > MOST_BYTES || sum < -MOST_BYTES) fail(MISUSE, "a barrier counts at most %d bytes, not %d", MOST_BYTES, sum);
  s.bytes_and_parity = sum * 2 + static_cast<int>(s.parity());
}

void complete(BulkCopy& c) {
  memcpy(c.to, c.from, c.bytes);
  show_to_async(c.to, c.bytes);
  c.done = true;
  add_bytes(*c.barrier, -static_cast<int>(c.bytes));
  end_phase_if_complete(*c.barrier);
}

template <class Wanted>
void complete_where(Wanted wanted) {
  unsigned kept = 0;
  for (unsigned i = 0; i < engine.count; ++i)
    if (wanted(engine.list[i])) complete(engine.list[i]);
  for (unsigned i = 0; i < engine.count; ++i)
    if (!engine.list[i].done) engine.list[kept++] = engine.list[i];
  engine.count = kept;
}

void complete_some() {
  if (running.launch->copies != RANDOM) return;
  complete_where([](const BulkCopy&) { return running.copies.below(4) == 0; });
  arrive_some();
}

}  // namespace

void barrier_init(void* barrier, unsigned arrivals) {
  unsigned rank;
  if (reinterpret_cast<uintptr_t>(barrier) % 8 || !array_of(static_cast<char*>(barrier), &rank))
    fail(MISUSE, "a barrier must lie in shared memory at a multiple of 8");
  if (!arrivals || arrivals > MOST_ARRIVALS) fail(MISUSE, "a barrier cannot wait for %u arrivals", arrivals);
  for (unsigned i = 0; i < barriers.count; ++i)
    if (barriers.list[i] == barrier) fail(MISUSE, "a barrier is set up twice");
  append<SetUp, const void*>(barriers, barrier);
  *static_cast<BarrierState*>(barrier) = BarrierState{static_cast<uint16_t>(arrivals), static_cast<uint16_t>(arrivals), 0};
}

void barrier_arrive(void* barrier, unsigned bytes) {
  BarrierState& s = state_of(barrier);
  if (!s.pending) fail(MISUSE, "a barrier gets more arrivals than its %u a phase", s.arrivals);
  add_bytes(s, static_cast<int>(bytes));
  --s.pending;
  ++machine.progress;
  end_phase_if_complete(s);
  complete_some();
}

bool barrier_done(void* barrier, unsigned parity) {
  BarrierState& s = state_of(barrier);
  complete_some();
  if (s.parity() == parity) complete_where([&](const BulkCopy& c) { return c.barrier == &s; });
  while (s.parity() == parity && arrive_next(barrier)) continue;
  return s.parity() != parity;
}

void bulk_copy(void* shared, const void* global, unsigned bytes, void* barrier, bool once) {
  auto* to = static_cast<char*>(shared);
  auto* from = static_cast<const char*>(global);
  ++machine.count.bulk_copies;
  machine.count.bulk_bytes += bytes;
  machine.count.streamed_late += once && machine.current->admitted;
  if ((reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from) | bytes) % 16 || !bytes)
    fail(MISUSE, "a bulk copy of %u bytes has a size or an address that is no multiple of 16", bytes);
  unsigned rank;
  const SharedArray* a = array_of(to, &rank);
  if (!a) fail(OUT_OF_BOUNDS, "a bulk copy writes to an address that is not in shared memory");
  const char* base = a->address + rank * a->stride;
  if (to < base || to + bytes > base + a->bytes)
    fail(OUT_OF_BOUNDS, "a bulk copy of %u bytes writes past shared array %s (%u bytes) at byte offset %td", bytes, a->name,
         a->bytes, to - base);
  if (is_shared(from)) fail(MISUSE, "a bulk copy reads global memory, and its address is in shared memory");
  // else the store might come last: copies are of another proxy, which no barrier orders with the stores of threads
  if (!shown_to_async(to, bytes)) fail(MISUSE, "a bulk copy goes over what a thread stored, without a fence_proxy between");
  // a read out of bounds is reported here, where it was asked for
  (void)*static_cast<const volatile char*>(from);
  (void)*static_cast<const volatile char*>(from + bytes - 1);
  BulkCopy c{to, from, bytes, &state_of(barrier), false};
  if (running.launch->copies == EAGER) return complete(c);
  memset(to, POISON, bytes);
  append(engine, c);
  complete_some();
}

void forget_barriers_and_bulk_copies() { engine.count = barriers.count = 0; }

// at the end of a cluster: the engine would write to memory that the next block already uses
void check_bulk_copies() {
  if (engine.count) fail_outside(MISUSE, "the kernel ends with %u bulk copies that nobody waited for", engine.count);
}

char* of_block(char* p, unsigned rank) {
  unsigned mine;
  const SharedArray* a = array_of(p, &mine);
  if (!a) fail(MISUSE, "an address to be found in another block is not in shared memory");
  if (rank >= running.launch->cluster) fail(MISUSE, "block %u does not exist in a cluster of %u", rank, running.launch->cluster);
  if (running.blocks[rank].exited == running.threads)
    fail(MISUSE, "block %u of the cluster has ended, and with it the shared memory that another block reaches for", rank);
  return p + (static_cast<ptrdiff_t>(rank) - static_cast<ptrdiff_t>(mine)) * static_cast<ptrdiff_t>(a->stride);
}

void check_raised(const void* flag, bool cluster) {
  unsigned rank;
  if (!array_of(static_cast<const char*>(flag), &rank)) fail(MISUSE, "a flag must lie in shared memory");
  if (rank == machine.current->block->rank) return;
  if (!cluster) fail(MISUSE, "a flag of another block is raised for this block only");
  if (running.blocks[rank].exited) fail(MISUSE, "a flag is raised in block %u of the cluster, whose threads have exited", rank);
}

}  // namespace lane_rt
