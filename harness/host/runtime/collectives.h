#pragma once
// Warp collectives: each lane leaves its operands at a meeting and waits for the others; the last to come computes
// what needs all of them. Two meetings are used in turn, so one switch a lane is enough. The next-but-one collective
// would find lanes that have not read their result only if masks change in between; then its first lane waits.
#include "cuda.h"

namespace lane_rt {

enum : unsigned { ALL = 0xFFFFFFFFu };

inline void pass(Fiber* self, Warp& w) {
  Fiber* next = self->next;
  if (next == self || ++w.futile > WARP) return machine->give_up(self);
  machine->current = next;
  machine->swap(&self->sp, next->sp);
}

template <class M>
inline void join(Fiber* self, Warp& w, M& m, unsigned mask, const Site& site) {
  if (__builtin_expect(!(mask & self->bit) || mask & (~w.present | w.exited), 0)) machine->meeting_refused(&m, mask, site);
  while (__builtin_expect(m.unread, 0)) pass(self, w);
  if (!m.arrived) {
    m.mask = mask;
    m.site = site;
  } else if (__builtin_expect(m.mask != mask || m.site.line != site.line || m.site.what != site.what, 0)) {
    machine->meeting_refused(&m, mask, site);
  }
  w.futile = 0;
}

// all lanes of the mask have deposited when this returns; finish(m) has run once
template <class M, class Deposit, class Finish>
inline M& meet(M& m, Fiber* self, Warp& w, unsigned& open, unsigned toggle, unsigned mask, const Site& site, Deposit deposit,
               Finish finish) {
  join(self, w, m, mask, site);
  deposit(m);
  m.arrived |= self->bit;
  if (m.arrived == mask) {
    finish(m);
    m.arrived = 0;
    m.unread = mask;
    open ^= toggle;
    ++machine->progress;
    ++machine->count.collectives;
  } else {
    while (!(m.unread & self->bit)) pass(self, w);
  }
  m.unread &= ~self->bit;
  return m;
}

template <class Deposit, class Finish>
inline FullMeeting& meet_all(const Site& site, Deposit deposit, Finish finish) {
  Fiber* self = machine->current;
  Warp& w = *self->warp;
  return meet(w.full[w.open], self, w, w.open, 1, ALL, site, deposit, finish);
}

// exchange a word among the lanes of a mask; the reader sees all deposited words
template <class Finish>
inline const Meeting& exchange(unsigned mask, unsigned long long word, const Site& site, Finish finish) {
  Fiber* self = machine->current;
  Warp& w = *self->warp;
  const unsigned lane = self->lane;
  auto deposit = [=](Meeting& m) { m.word[lane] = word; };
  if (__builtin_expect(mask == ALL, 1)) return meet<Meeting>(w.full[w.open], self, w, w.open, 1, ALL, site, deposit, finish);
  if (!mask) machine->meeting_refused(nullptr, mask, site);
  return meet<Meeting>(*machine->part_meeting(&w, mask), self, w, w.part_open, mask & -mask, mask, site, deposit, finish);
}

template <class T>
inline T shuffle(unsigned mask, T value, unsigned source, const Site& site) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "a shuffle moves 4 or 8 bytes");
  unsigned long long word = 0;
  __builtin_memcpy(&word, &value, sizeof value);
  const Meeting& m = exchange(mask, word, site, [](Meeting&) { ++machine->count.shuffles; });
  if (__builtin_expect(!(mask >> (source & 31) & 1), 0))
    machine->fail(DIVERGENCE, "%s (%s:%d) reads lane %u, which is not in the mask 0x%08x", site.what, site.file, site.line,
                  source, mask);
  T result;
  __builtin_memcpy(&result, &m.word[source & 31], sizeof result);
  return result;
}

inline unsigned my_lane() { return machine->current->lane; }

}  // namespace lane_rt

template <class T>
inline T __shfl_sync(unsigned mask, T value, int lane, int width = 32, LANE_SITE) {
  const unsigned me = lane_rt::my_lane();
  return lane_rt::shuffle(mask, value, (me & ~(width - 1)) | (lane & (width - 1)), {"__shfl_sync", file, line});
}

template <class T>
inline T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32, LANE_SITE) {
  const unsigned me = lane_rt::my_lane(), source = me ^ lanes;
  // a source beyond the own segment reads the own value
  return lane_rt::shuffle(mask, value, source > (me | unsigned(width - 1)) ? me : source, {"__shfl_xor_sync", file, line});
}

template <class T>
inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, LANE_SITE) {
  const unsigned me = lane_rt::my_lane(), within = me & (width - 1);
  return lane_rt::shuffle(mask, value, within + delta < unsigned(width) ? me + delta : me, {"__shfl_down_sync", file, line});
}

template <class T>
inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, LANE_SITE) {
  const unsigned me = lane_rt::my_lane(), within = me & (width - 1);
  return lane_rt::shuffle(mask, value, within >= delta ? me - delta : me, {"__shfl_up_sync", file, line});
}

inline unsigned __ballot_sync(unsigned mask, int predicate, LANE_SITE) {
  using namespace lane_rt;
  // the last lane replaces the deposited flags by the ballot, kept in its mask's words
  auto count = [](Meeting& m) {
    unsigned votes = 0;
    for (unsigned i = 0; i < WARP; ++i)
      if (m.mask >> i & 1 && m.word[i]) votes |= 1u << i;
    for (unsigned i = 0; i < WARP; ++i) m.word[i] = votes;
    ++machine->count.votes;
  };
  const unsigned lane = my_lane();
  return static_cast<unsigned>(exchange(mask, predicate != 0, {"vote", file, line}, count).word[lane]);
}
inline int __any_sync(unsigned mask, int predicate, LANE_SITE) { return __ballot_sync(mask, predicate, file, line) != 0; }
inline int __all_sync(unsigned mask, int predicate, LANE_SITE) { return __ballot_sync(mask, predicate, file, line) == mask; }

inline void __syncwarp(unsigned mask = lane_rt::ALL, LANE_SITE) {
  lane_rt::exchange(mask, 0, {"__syncwarp", file, line}, [](lane_rt::Meeting&) { ++lane_rt::machine->count.syncwarps; });
}
