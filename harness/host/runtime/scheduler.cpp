// Fibers of one cluster run warp by warp on this OS thread: the lanes of a warp in turn until each waits or is done.
#include <stdlib.h>
#include <string.h>

#include "context.h"
#include "runtime.h"

namespace lane_rt {

static void link_last(Fiber* f) {
  Warp& w = *f->warp;
  f->state = RUNNING;
  if (!w.ring) {
    w.ring = f->next = f->prev = f;
    return;
  }
  Fiber* head = w.ring;
  f->prev = head->prev;
  f->next = head;
  head->prev->next = f;
  head->prev = f;
}

void unlink(Fiber* f) {
  Warp& w = *f->warp;
  if (f->next == f) {
    w.ring = nullptr;
    return;
  }
  f->prev->next = f->next;
  f->next->prev = f->prev;
  if (w.ring == f) w.ring = f->next;
}

static void permute(unsigned char* order, unsigned n) {
  const int schedule = running.launch->schedule;
  for (unsigned i = 0; i < n; ++i) order[i] = schedule == DESCENDING ? n - 1 - i : i;
  if (schedule != SEEDED) return;
  for (unsigned i = n; i > 1; --i) {
    unsigned j = running.schedule.below(i);
    unsigned char kept = order[i - 1];
    order[i - 1] = order[j];
    order[j] = kept;
  }
}

static void to_main(Fiber* self) { lanelock_swap(&self->sp, machine.main_sp); }

// the lane has left its ring: run the next of its warp, or let the scheduler choose another warp
static void leave(Fiber* self, Fiber* next) {
  if (!self->warp->ring) return to_main(self);
  machine.current = next;
  lanelock_swap(&self->sp, next->sp);
}

static void suspend(Fiber* self, State state, Site site) {
  Fiber* next = self->next;
  self->state = state;
  self->site = site;
  unlink(self);
  leave(self, next);
}

static void give_up(Fiber* self) {
  self->warp->futile = 0;
  to_main(self);
}

static void poll(Site site) {
  ++machine.count.polls;
  suspend(machine.current, POLLING, site);
}

static void release(Block& b, unsigned id) {
  for (unsigned w = 0; w < running.warps; ++w) {
    Warp& warp = b.warps[w];
    permute(warp.order, WARP);
    for (unsigned char lane : warp.order) {
      if (!(warp.present >> lane & 1)) continue;
      Fiber& f = warp.fibers[lane];
      if (f.state == AT_BARRIER && f.wanted == id) link_last(&f);
    }
  }
}

// The last to arrive frees the others and then goes back to the scheduler as well, so that the order of threads
// after a barrier follows the schedule and not the order of arrival.
static void barrier(unsigned id, unsigned threads, Site site) {
  Fiber* self = machine.current;
  Block& b = *self->block;
  if (id >= MAX_BARRIERS) fail(MISUSE, "barrier %u does not exist; there are %d (%s:%d)", id, MAX_BARRIERS, site.file, site.line);
  Barrier& bar = b.barriers[id];
  const unsigned expected = threads ? threads : running.threads;
  if (!bar.arrived) {
    bar.expected = expected;
    bar.site = site;
  } else if (bar.expected != expected) {
    fail(DIVERGENCE, "barrier %u expects %u threads at %s:%d but %u at %s:%d", id, expected, site.file, site.line,
         bar.expected, bar.site.file, bar.site.line);
  } else if (!threads && bar.site.line != site.line) {  // a named barrier may join different places
    fail(DIVERGENCE, "threads of one block meet at different barriers: %s at %s:%d and %s at %s:%d", site.what, site.file,
         site.line, bar.site.what, bar.site.file, bar.site.line);
  }
  self->wanted = id;
  if (++bar.arrived < expected) return suspend(self, AT_BARRIER, site);
  bar.arrived = 0;
  ++bar.generation;
  ++machine.progress;
  ++machine.count.barriers;
  unlink(self);
  self->state = AT_BARRIER;
  release(b, id);
  to_main(self);
}

static unsigned cluster_arrived;

static void cluster_barrier(Site site) {
  Fiber* self = machine.current;
  self->wanted = MAX_BARRIERS;
  const unsigned blocks = running.launch->cluster;
  if (++cluster_arrived < blocks * running.threads) return suspend(self, AT_BARRIER, site);
  cluster_arrived = 0;
  ++machine.progress;
  ++machine.count.cluster_barriers;
  unlink(self);
  self->state = AT_BARRIER;
  for (unsigned r = 0; r < blocks; ++r) release(running.blocks[r], MAX_BARRIERS);
  to_main(self);
}

static void fiber_main() {
  running.launch->thunk(running.arguments);
  Fiber* self = machine.current;
  ++machine.progress;
  ++self->block->exited;
  self->warp->exited |= self->bit;
  leave_copies(self);
  suspend(self, EXITED, Site{"the end of the kernel", "", 0});
  abort();
}

static void start_block(Block& b, unsigned first_fiber, unsigned threads) {
  const Launch& l = *running.launch;
  b.exited = 0;
  memset(b.barriers, 0, sizeof b.barriers);
  for (unsigned t = 0; t < threads; ++t) {
    Fiber& f = b.fibers[t];
    f.state = UNBORN;
    f.admitted = false;
    f.thread = {t % l.block[0], t / l.block[0] % l.block[1], t / l.block[0] / l.block[1]};
    // stacks begin at different cache sets: 64 KB apart they would all share the same few
    char* low = static_cast<char*>(stack_of(first_fiber + t));
    f.stack = low;
    f.sp = make_context(low, STACK - (first_fiber + t) % 31 * 256, fiber_main);
    forget_copies(&f);
  }
  for (unsigned w = 0; w < running.warps; ++w) {
    Warp& warp = b.warps[w];
    warp.ring = nullptr;
    warp.futile = warp.exited = warp.open = warp.part_open = 0;
    const unsigned left = threads - w * WARP, lanes = left < WARP ? left : unsigned{WARP};
    warp.present = lanes == WARP ? ~0u : (1u << lanes) - 1;
    for (int i = 0; i < 2; ++i) warp.full[i].arrived = warp.full[i].unread = 0;
    if (warp.part) memset(warp.part, 0, sizeof(Meeting) * WARP * 2);
    permute(warp.order, WARP);
    for (unsigned char lane : warp.order)
      if (lane < lanes) link_last(&warp.fibers[lane]);
  }
  machine.count.blocks += 1;
  machine.count.threads += threads;
}

static void run_warp(Warp& w) {
  if (!w.ring) return;
  machine.current = w.ring;
  lanelock_swap(&machine.main_sp, w.ring->sp);
  machine.current = nullptr;
}

static void wake_polling(Warp& w) {
  for (unsigned char lane : w.order)
    if (w.present >> lane & 1 && w.fibers[lane].state == POLLING) link_last(&w.fibers[lane]);
}

// every block of the cluster to its end
static void run_cluster() {
  const unsigned cluster = running.launch->cluster;
  unsigned char order[MAX_WARPS];
  unsigned long long before;
  unsigned done;
  do {
    before = machine.progress;
    done = 0;
    for (unsigned r = 0; r < cluster; ++r) {
      Block& b = running.blocks[running.launch->schedule == DESCENDING ? cluster - 1 - r : r];
      permute(order, running.warps);
      for (unsigned i = 0; i < running.warps; ++i) {
        Warp& w = b.warps[order[i]];
        if (machine.count.polls) wake_polling(w);
        run_warp(w);
        if (running.failure) return;
      }
      done += b.exited;
    }
    if (done == running.threads * cluster) return;
  } while (machine.progress != before);
  char text[3000];
  describe_waiting(text, sizeof text);
  fail_outside(DIVERGENCE, "no thread can go on: %s", text);
}

void run_grid() {
  const Launch& l = *running.launch;
  machine.swap = lanelock_swap;
  machine.give_up = give_up;
  machine.barrier = barrier;
  machine.cluster_barrier = cluster_barrier;
  machine.poll = poll;
  cluster_arrived = 0;
  const uint64_t blocks = uint64_t{l.grid[0]} * l.grid[1] * l.grid[2], groups = blocks / l.cluster;
  unsigned* order = nullptr;
  if (l.schedule == SEEDED && groups > 1) {
    order = static_cast<unsigned*>(malloc(groups * sizeof(unsigned)));
    for (unsigned i = 0; i < groups; ++i) order[i] = i;
    for (unsigned i = groups; i > 1; --i) {
      unsigned j = running.schedule.below(i), kept = order[i - 1];
      order[i - 1] = order[j];
      order[j] = kept;
    }
  }
  for (uint64_t g = 0; g < groups && !running.failure; ++g) {
    const uint64_t group = order ? order[g] : l.schedule == DESCENDING ? groups - 1 - g : g;
    for (unsigned r = 0; r < l.cluster; ++r) {  // clusters lie along x
      const uint64_t linear = group * l.cluster + r;
      Block& b = running.blocks[r];
      b.index = {unsigned(linear % l.grid[0]), unsigned(linear / l.grid[0] % l.grid[1]),
                 unsigned(linear / l.grid[0] / l.grid[1])};
      start_block(b, r * running.threads, running.threads);
    }
    poison_shared();
    forget_wgmma();
    forget_barriers_and_bulk_copies();
    run_cluster();
    if (!running.failure) check_bulk_copies();
    if (!running.failure) check_arrivals();
    if (!running.failure) check_wgmma();
    if (!running.failure) check_shared();
  }
  free(order);
}

}  // namespace lane_rt
