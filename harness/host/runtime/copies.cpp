// Asynchronous copies. Late: the destination is poisoned at issue and filled exactly when a wait demands it, so a
// wait of the wrong depth is wrong every time. Random: any pending copy may also complete at any issue, commit or wait.
#include <stdlib.h>
#include <string.h>

#include "runtime.h"

namespace lane_rt {

struct Copy {
  char* to;
  const char* from;
  unsigned bytes, filled;  // filled bytes come from memory, the rest are zeros
  unsigned group;
  bool done;
};

struct Copies {
  Copy* list;
  unsigned count, room;
  unsigned group;  // the open group
};

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
  Copy c{to, from, bytes, filled, 0, false};
  if (running.launch->copies == EAGER) return complete(c);
  memset(to, POISON, bytes);
  Copies& q = queue();
  if (q.count == q.room) {
    q.room = q.room ? 2 * q.room : 32;
    q.list = static_cast<Copy*>(realloc(q.list, q.room * sizeof(Copy)));
  }
  c.group = q.group;
  q.list[q.count++] = c;
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

void forget_copies(Fiber* f) {
  if (!f->copies) return;
  f->copies->count = f->copies->group = 0;
}

}  // namespace lane_rt
