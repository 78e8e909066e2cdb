// Asynchronous copies. Late: the destination is poisoned at issue and filled exactly when a wait demands it, so a
// wait of the wrong depth is wrong every time. Random: any pending copy may also complete at any issue, commit or wait.
//
// An arrival that follows copies comes to its barrier when they are done: late, when a wait for the barrier demands it.
#include <stdlib.h>
#include <string.h>

#include "runtime.h"

namespace lane_rt {

struct Copy {
  char* to;
  const char* from;
  unsigned bytes, filled;  // filled bytes come from memory, the rest are zeros
  unsigned group, number;
  bool done;
};

struct Copies {
  Copy* list;
  unsigned count, room;
  unsigned group;   // the open group
  unsigned issued;  // copies so far
};

struct Arrival {
  Copies* after;
  unsigned copies;  // those of them that it follows
  void* barrier;
};

static struct {
  Arrival* list;
  unsigned count, room;
} arrivals;  // of all threads, oldest first

static void find_array(char* to) {
  unsigned rank;
  const SharedArray* a = array_of(to, &rank);
  if (!a) fail(OUT_OF_BOUNDS, "cp.async writes to an address that is not in shared memory");
  machine.shared_low = a->address + rank * a->stride;
  machine.shared_high = machine.shared_low + a->bytes;
}

static void complete(Copy& c) {
  memcpy(c.to, c.from, c.filled);
  memset(c.to + c.filled, 0, c.bytes - c.filled);
  c.done = true;
}

static void drop_done(Copies& q) {
  unsigned kept = 0;
  for (unsigned i = 0; i < q.count; ++i)
    if (!q.list[i].done) q.list[kept++] = q.list[i];
  q.count = kept;
}

static void complete_some(Copies& q) {
  for (unsigned i = 0; i < q.count; ++i)
    if (running.copies.below(4) == 0) complete(q.list[i]);
  drop_done(q);
}

static Copies& queue() {
  Fiber* f = machine.current;
  if (!f->copies) f->copies = static_cast<Copies*>(calloc(1, sizeof(Copies)));
  return *f->copies;
}

void copy_async(void* shared, const void* global, unsigned bytes, unsigned filled) {
  auto* to = static_cast<char*>(shared);
  auto* from = static_cast<const char*>(global);
  ++machine.count.cp_async;
  machine.count.cp_async_bytes += filled;
  if (filled > bytes) fail(MISUSE, "cp.async reads %u bytes into %u", filled, bytes);
  if (reinterpret_cast<uintptr_t>(to) % bytes || (filled && reinterpret_cast<uintptr_t>(from) % bytes))
    fail(MISUSE, "cp.async of %u bytes has a misaligned address", bytes);
  if (to < machine.shared_low || to >= machine.shared_high) find_array(to);
  if (is_shared(from)) fail(MISUSE, "cp.async reads global memory, and its address is in shared memory");
  if (filled) {  // a read out of bounds is reported here, where it was asked for
    (void)*static_cast<const volatile char*>(from);
    (void)*static_cast<const volatile char*>(from + filled - 1);
  }
  Copy c{to, from, bytes, filled, 0, 0, false};
  if (running.launch->copies == EAGER) return complete(c);
  memset(to, POISON, bytes);
  Copies& q = queue();
  c.group = q.group, c.number = q.issued++;
  append(q, c);
  if (running.launch->copies == RANDOM) complete_some(q);
}

void copy_commit() {
  if (running.launch->copies == EAGER) return;
  Copies& q = queue();
  ++q.group;
  if (running.launch->copies == RANDOM) complete_some(q);
}

void copy_wait(unsigned pending) {
  if (running.launch->copies == EAGER) return;
  Copies& q = queue();
  for (unsigned i = 0; i < q.count; ++i)
    if (q.list[i].group + pending < q.group) complete(q.list[i]);
  drop_done(q);
  if (running.launch->copies == RANDOM) complete_some(q);
}

static void arrive(unsigned index) {
  const Arrival a = arrivals.list[index];
  for (unsigned i = 0; i < a.after->count; ++i)
    if (a.after->list[i].number < a.copies) complete(a.after->list[i]);
  drop_done(*a.after);
  --arrivals.count;
  memmove(arrivals.list + index, arrivals.list + index + 1, (arrivals.count - index) * sizeof(Arrival));
  barrier_arrive(a.barrier, 0);
}

void copy_arrive(void* barrier) {
  if (running.launch->copies == EAGER) return barrier_arrive(barrier, 0);
  Copies& q = queue();
  append(arrivals, Arrival{&q, q.issued, barrier});
  ++machine.progress;  // whoever waits for the barrier may ask for it now
  if (running.launch->copies == RANDOM) arrive_some();
}

bool arrive_next(const void* barrier) {
  for (unsigned i = 0; i < arrivals.count; ++i)
    if (arrivals.list[i].barrier == barrier) return arrive(i), true;
  return false;
}

void arrive_some() {
  for (unsigned i = arrivals.count; i > 0; --i)
    if (i <= arrivals.count && running.copies.below(4) == 0) arrive(i - 1);
}

// at the end of a thread; copies that an arrival follows go on without it
void leave_copies(Fiber* f) {
  for (unsigned i = 0; i < arrivals.count; ++i)
    if (arrivals.list[i].after == f->copies) return;
  forget_copies(f);
}

void forget_copies(Fiber* f) {
  if (f->copies) f->copies->count = f->copies->group = f->copies->issued = 0;
}

void forget_arrivals() { arrivals.count = 0; }

void check_arrivals() {
  if (arrivals.count) fail_outside(MISUSE, "the kernel ends with %u arrivals of copies that nobody waited for", arrivals.count);
}

}  // namespace lane_rt
