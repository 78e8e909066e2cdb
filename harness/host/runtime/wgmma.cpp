// Products of a warpgroup. The registers of D hold poison from their issue on, and a product is made from the registers of
// A, and from shared memory, when a wait demands it (late), at its issue (eager), or in between (random). So a register
// that is read or changed too early, or memory that is filled again too early, is wrong every time.
//
// B is read as the async proxy sees shared memory: from a second copy of it, where bytes come by bulk copies and, of what
// threads wrote, by fence_proxy alone. A fence shows all that was written before it, also by other threads that have not
// called it: an order of threads in which they wrote later shows the difference.
#include <stdlib.h>
#include <string.h>

#include "runtime.h"

namespace lane_rt {

namespace {

constexpr unsigned MOST = 16;       // products in flight that a warp may have here
constexpr unsigned REMEMBERED = 64;  // products of a warpgroup that its slower warps are compared with
constexpr unsigned WINDOW = 1024;    // where dynamic shared memory begins in the addresses of a descriptor

struct Operand {
  unsigned start, leading, stride, mode;
};

struct Product {
  Registers lanes[WARP];
  Operand b;
  unsigned columns, group;
  int* added;  // D as it was [lane][column of the lane], or null
};

struct WarpProducts {
  Product list[MOST];
  unsigned count, group;
  bool fenced;
  unsigned long long issued;
};

struct Groups {
  unsigned long long issued;
  unsigned long long b[REMEMBERED];
};

WarpProducts* warps[MAX_CLUSTER];  // [MAX_WARPS] each
Groups groups[MAX_CLUSTER][MAX_WARPS / 4];
char* views[MAX_CLUSTER];
bool seen[MAX_CLUSTER];  // whether this block's view has been poisoned
bool used;               // by this cluster

WarpProducts& mine() {
  const unsigned rank = machine.current->block->rank;
  if (!warps[rank]) warps[rank] = static_cast<WarpProducts*>(calloc(MAX_WARPS, sizeof(WarpProducts)));
  used = true;
  return warps[rank][machine.current->warp->index];
}

const SharedArray& dynamic_array() {
  const SharedArray* a = placed_dynamic();
  if (!a) fail(MISUSE, "products of a warpgroup read dynamic shared memory, and this kernel has not declared any");
  return *a;
}

char* view_of(const SharedArray& a, unsigned rank) {
  if (!views[rank]) views[rank] = static_cast<char*>(malloc(DYNAMIC_SHARED));
  if (!seen[rank]) memset(views[rank], POISON, a.bytes);
  seen[rank] = true;
  return views[rank];
}

unsigned base_of(const SharedArray& a) { return WINDOW + static_cast<unsigned>(reinterpret_cast<uintptr_t>(a.address) % 1024); }

Operand decode(unsigned long long d) {
  constexpr unsigned long long UNUSED = 3ull << 14 | 3ull << 30 | 7ull << 46 | 1023ull << 52, BASE_OFFSET = 7ull << 49;
  if (d & UNUSED) fail(MISUSE, "a descriptor sets bits that mean nothing: %016llx", d);
  if (d & BASE_OFFSET) fail(MISUSE, "a descriptor has a base offset, which the host device does not model: %016llx", d);
  const auto field = [&](int at) { return static_cast<unsigned>(d >> at & 0x3FFF) << 4; };
  return {field(0), field(16), field(32), static_cast<unsigned>(d >> 62)};
}

// 16-byte unit `unit` of a row: core matrices of 8 rows x 16 bytes without a swizzle; with one, rows of 128, 64 or 32 bytes
// whose units are exchanged by the address bits above them, and no use for the leading offset
unsigned address_of(const Operand& o, unsigned row, unsigned unit) {
  if (o.mode == 0) return o.start + row / 8 * o.stride + unit * o.leading + row % 8 * 16;
  const unsigned width = 128u >> (o.mode - 1), linear = o.start + row / 8 * o.stride + row % 8 * width + unit * 16;
  return linear ^ (linear >> 7 & (width / 16 - 1)) << 4;
}

void read_rows(const Product& p, unsigned first, Fragments8& f) {
  const SharedArray& a = dynamic_array();
  const char* view = view_of(a, machine.current->block->rank);
  const unsigned base = base_of(a);
  for (unsigned row = 0; row < 8; ++row)
    for (unsigned unit = 0; unit < 2; ++unit) {
      const unsigned at = address_of(p.b, first + row, unit);
      if (at < base || at + 16 > base + a.bytes)
        fail(OUT_OF_BOUNDS, "a product reads row %u of an operand at byte %d of dynamic shared memory (%u bytes)", first + row,
             static_cast<int>(at - base), a.bytes);
      unsigned words[4];
      memcpy(words, view + (at - base), 16);
      for (unsigned w = 0; w < 4; ++w) f.b[4 * unit + w][row] = words[w];
    }
}

void complete(Product& p) {
  Fragments8 f;
  for (unsigned l = 0; l < WARP; ++l)
    for (unsigned i = 0; i < 4; ++i) f.a[l / 4 + i % 2 * 8][l % 4 + i / 2 * 4] = p.lanes[l].a[i];
  for (unsigned j = 0; j < p.columns / 8; ++j) {
    alignas(64) int sums[16][8];
    read_rows(p, 8 * j, f);
    product_s8(f, sums);
    for (unsigned l = 0; l < WARP; ++l)
      for (unsigned i = 0; i < 4; ++i) {
        const int sum = sums[l / 4 + i / 2 * 8][l % 4 * 2 + i % 2], k = static_cast<int>(4 * j + i);
        p.lanes[l].d[k] = p.added ? static_cast<int>(static_cast<unsigned>(p.added[l * p.columns / 2 + k]) + static_cast<unsigned>(sum)) : sum;
      }
  }
  free(p.added);
  p.added = nullptr;
}

void complete_first(WarpProducts& w) {
  complete(w.list[0]);
  --w.count;
  memmove(w.list, w.list + 1, w.count * sizeof(Product));
}

void complete_some(WarpProducts& w) {
  while (running.launch->copies == RANDOM && w.count && running.copies.below(4) == 0) complete_first(w);
}

// every warp of a group gives the same operand to its n-th product
void compare(const WarpProducts& w, unsigned long long b) {
  const unsigned index = machine.current->warp->index, first = index / 4 * 4;
  if (first + 4 > running.warps || running.threads % WARP)
    fail(DIVERGENCE, "warp %u issues a product of a warpgroup, but its block has not all four warps of it", index);
  Groups& g = groups[machine.current->block->rank][index / 4];
  if (w.issued == g.issued) g.b[g.issued++ % REMEMBERED] = b;
  else if (g.issued - w.issued <= REMEMBERED && g.b[w.issued % REMEMBERED] != b)
    fail(DIVERGENCE, "warp %u gives product %llu another operand (%016llx) than a warp of its group (%016llx)", index, w.issued, b,
         g.b[w.issued % REMEMBERED]);
}

}  // namespace

void fence_proxy() {
  const SharedArray* a = placed_dynamic();
  if (!a) return;
  const unsigned rank = machine.current->block->rank;
  memcpy(view_of(*a, rank), a->address + rank * a->stride, a->bytes);
}

void show_to_async(const char* shared, size_t bytes) {
  const SharedArray* a = placed_dynamic();
  if (!a) return;
  for (unsigned r = 0; r < running.launch->cluster; ++r) {
    const char* base = a->address + r * a->stride;
    if (shared >= base && shared < base + a->bytes) memcpy(view_of(*a, r) + (shared - base), shared, bytes);
  }
}

bool shown_to_async(const char* shared, size_t bytes) {
  const SharedArray* a = placed_dynamic();
  unsigned rank;
  if (!a || array_of(shared, &rank) != a) return true;  // static arrays have no second copy
  return !memcmp(view_of(*a, rank) + (shared - (a->address + rank * a->stride)), shared, bytes);
}

unsigned shared_offset(const void* p) {
  const SharedArray& a = dynamic_array();
  return base_of(a) + static_cast<unsigned>(static_cast<const char*>(p) - (a.address + machine.current->block->rank * a.stride));
}

void wgmma_fence() { mine().fenced = true; }

void wgmma_s8(const FullMeeting& m, unsigned columns, bool add) {
  WarpProducts& w = mine();
  const unsigned index = machine.current->warp->index;
  for (unsigned l = 1; l < WARP; ++l)
    if (m.word[l] != m.word[0]) fail(DIVERGENCE, "lanes of warp %u give a product different operands", index);
  if (!w.fenced) fail(MISUSE, "warp %u issues a product without a wgmma_fence since its registers were last free", index);
  if (w.count == MOST) fail(MISUSE, "warp %u has more than %u products in flight", index, MOST);
  for (unsigned i = 0; i < w.count; ++i)
    if (w.list[i].lanes[0].d == m.registers[0].d)
      fail(MISUSE, "warp %u gives the registers of a product in flight to another, which the host device does not model", index);
  compare(w, m.word[0]);
  ++w.issued;
  if (index % 4 == 0) ++machine.count.wgmma;
  Product& p = w.list[w.count++];
  memcpy(p.lanes, m.registers, sizeof p.lanes);
  p.b = decode(m.word[0]);
  p.columns = columns, p.group = w.group, p.added = nullptr;
  const unsigned bytes = columns / 2 * sizeof(int);
  if (add) p.added = static_cast<int*>(malloc(WARP * bytes));
  for (unsigned l = 0; l < WARP; ++l) {
    if (add) memcpy(p.added + l * columns / 2, p.lanes[l].d, bytes);
    memset(p.lanes[l].d, POISON, bytes);
  }
  if (running.launch->copies == EAGER) complete_first(w);
  complete_some(w);
}

void wgmma_commit() {
  WarpProducts& w = mine();
  ++w.group;
  complete_some(w);
}

void wgmma_wait(unsigned pending) {
  WarpProducts& w = mine();
  while (w.count && w.list[0].group + pending < w.group) complete_first(w);
  w.fenced = false;
  complete_some(w);
}

void wgmma_check(const int* d) {
  const WarpProducts& w = mine();
  if (running.launch->copies != LATE) return;
  for (unsigned i = 0; i < w.count; ++i)
    if (w.list[i].lanes[machine.current->lane].d == d)
      fail(MISUSE, "warp %u waits for a product that may stay in flight", machine.current->warp->index);
}

void forget_wgmma() {
  for (unsigned r = 0; r < MAX_CLUSTER; ++r) {
    seen[r] = false;
    for (unsigned i = 0; used && warps[r] && i < MAX_WARPS; ++i) {
      WarpProducts& w = warps[r][i];
      while (w.count) free(w.list[--w.count].added);
      w.group = 0, w.fenced = false, w.issued = 0;
    }
  }
  if (used) memset(groups, 0, sizeof groups);
  used = false;
}

// at the end of a cluster
void check_wgmma() {
  for (unsigned r = 0; used && r < running.launch->cluster; ++r)
    for (unsigned i = 0; warps[r] && i < running.warps; ++i) {
      const WarpProducts& w = warps[r][i];
      if (w.count) return fail_outside(MISUSE, "the kernel ends with %u products that warp %u has not waited for", w.count, i);
      if (w.issued != groups[r][i / 4].issued)
        return fail_outside(DIVERGENCE, "warp %u issued %llu products and another warp of its group %llu", i, w.issued, groups[r][i / 4].issued);
    }
}

}  // namespace lane_rt
