// Who waits where: the text of a Divergence error, and the checks of a collective that cannot be.
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime.h"

namespace lane_rt {

const char* base_name(const char* path) {
  const char* slash = strrchr(path, '/');
  return slash ? slash + 1 : path;
}

namespace {

struct Group {
  Site site;
  State state;
  unsigned count;
  const Fiber* first;
};

struct Text {
  char* text;
  size_t room, used;
  void add(const char* format, ...) __attribute__((format(printf, 2, 3))) {
    if (used + 1 >= room) return;
    va_list list;
    va_start(list, format);
    used += static_cast<size_t>(vsnprintf(text + used, room - used, format, list));
    va_end(list);
    if (used >= room) used = room - 1;
  }
};

void add_meeting(Text& out, const Warp& w, const Meeting& m) {
  if (!m.arrived) return;
  const unsigned missing = m.mask & ~m.arrived;
  out.add("warp %u waits in %s (%s:%d) with mask 0x%08x, lanes 0x%08x of it have not come", w.index, m.site.what,
          base_name(m.site.file), m.site.line, m.mask, missing);
  if (missing & w.exited) out.add(" (0x%08x have exited)", missing & w.exited);
  out.add("; ");
}

}  // namespace

void describe_waiting(char* text, size_t room) {
  Text out{text, room, 0};
  Group groups[12];
  int n = 0;
  for (unsigned r = 0; r < running.launch->cluster; ++r) {
    const Block& b = running.blocks[r];
    for (unsigned t = 0; t < running.threads; ++t) {
      const Fiber& f = b.fibers[t];
      if (f.state != AT_BARRIER && f.state != POLLING && f.state != EXITED) continue;
      int i = 0;
      while (i < n && (groups[i].state != f.state || groups[i].site.line != f.site.line || groups[i].first->block != &b)) ++i;
      if (i == 12) continue;
      if (i == n) groups[n++] = Group{f.site, f.state, 0, &f};
      ++groups[i].count;
    }
    for (unsigned w = 0; w < running.warps; ++w) {
      const Warp& warp = b.warps[w];
      for (int i = 0; i < 2; ++i) add_meeting(out, warp, warp.full[i]);
      for (int i = 0; warp.part && i < 2 * WARP; ++i) add_meeting(out, warp, warp.part[i / 2][i % 2]);
    }
  }
  for (int i = 0; i < n; ++i) {
    const Group& g = groups[i];
    const Dim3 b = g.first->block->index, t = g.first->thread;
    out.add("%u threads of block (%u, %u, %u), the first (%u, %u, %u), ", g.count, b.x, b.y, b.z, t.x, t.y, t.z);
    if (g.state == EXITED) out.add("have exited; ");
    else out.add("wait at %s (%s:%d); ", g.site.what, base_name(g.site.file), g.site.line);
  }
  if (out.used >= 2) text[out.used - 2] = 0;
}

void meeting_refused(Meeting* m, unsigned mask, Site site) {
  const Fiber* self = machine.current;
  const Warp& w = *self->warp;
  const char* file = base_name(site.file);
  if (!(mask & self->bit))
    fail(DIVERGENCE, "%s (%s:%d) is called by lane %u, which its mask 0x%08x does not name", site.what, file, site.line,
         self->lane, mask);
  if (mask & ~w.present)
    fail(DIVERGENCE, "%s (%s:%d) has mask 0x%08x, but the warp has only the lanes 0x%08x", site.what, file, site.line, mask,
         w.present);
  if (mask & w.exited)
    fail(DIVERGENCE, "%s (%s:%d) has mask 0x%08x, but the lanes 0x%08x of it have exited", site.what, file, site.line, mask,
         mask & w.exited);
  if (m && m->arrived)
    fail(DIVERGENCE, "lanes of one warp meet in different collectives: lane %u in %s (%s:%d) with mask 0x%08x, lanes 0x%08x "
         "in %s (%s:%d) with mask 0x%08x", self->lane, site.what, file, site.line, mask, m->arrived, m->site.what,
         base_name(m->site.file), m->site.line, m->mask);
}

Meeting* part_meeting(Warp* w, unsigned mask) {
  if (!mask) return &w->full[0];
  static_assert(sizeof(Meeting) % alignof(Meeting) == 0);
  if (!w->part) {
    const size_t bytes = sizeof(Meeting) * 2 * WARP;
    w->part = static_cast<Meeting(*)[2]>(aligned_alloc(alignof(Meeting), bytes));
    memset(w->part, 0, bytes);
  }
  const int leader = __builtin_ctz(mask);
  return &w->part[leader][w->part_open >> leader & 1];
}

}  // namespace lane_rt
