// Shared memory: every declaration in pages of its own between guards, poisoned before each block.
#include <string.h>

#include "runtime.h"

namespace lane_rt {

static SharedArray dynamic_array{"dynamic shared memory", "", 0, 0, 16, 0, nullptr, 0, nullptr, 0, 0};

static size_t round_up(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }

static char* copy_pages(const SharedArray& a, unsigned rank) { return a.mapping + SHARED_GUARD + rank * a.stride; }

static uint16_t canary() { return CANARY[running.launch->align_end != 0]; }

static void poison(const SharedArray& a) {
  for (unsigned r = 0; r < running.launch->cluster; ++r) {
    char* pages = copy_pages(a, r);
    char* base = a.address + r * a.stride;
    fill_canary(pages, base, canary());
    memset(base, POISON, a.bytes);
    fill_canary(base + a.bytes, pages + a.pages, canary());
  }
}

// The mapping is kept for later launches; of it, only the pages that this launch's bytes need are accessible.
static bool map(SharedArray* a, size_t room) {
  const unsigned cluster = running.launch->cluster;
  if (!a->mapping || a->copies < cluster) {
    a->stride = round_up(room, PAGE) + SHARED_GUARD;
    a->mapping = reserve(cluster * a->stride + SHARED_GUARD);
    a->copies = a->mapping ? cluster : 0;
    a->pages = 0;
  }
  const size_t pages = round_up(a->bytes, PAGE), before = a->pages;
  a->pages = pages;
  for (unsigned r = 0; r < a->copies && pages != before; ++r) {
    if (before) close_pages(copy_pages(*a, r), before);
    if (!open_pages(copy_pages(*a, r), pages)) return false;
  }
  return a->mapping;
}

// the array lies at the end or the start of its pages, as this launch asks
static bool place(SharedArray* a, size_t room) {
  if (!map(a, room)) return false;
  char* pages = copy_pages(*a, 0);
  a->address = pages;
  if (running.launch->align_end)
    a->address = reinterpret_cast<char*>(reinterpret_cast<uintptr_t>(pages + a->pages - a->bytes) / a->align * a->align);
  a->launch = machine.launch;
  if (running.array_count == MAX_ARRAYS) {
    fail(MISUSE, "a block declares more than %d shared arrays", MAX_ARRAYS);
    return false;
  }
  running.arrays[running.array_count++] = a;
  poison(*a);
  return true;
}

char* place_shared(SharedArray* a) {
  running.static_bytes += static_cast<unsigned>(round_up(a->bytes, a->align));
  if (running.static_bytes > STATIC_SHARED)
    fail(MISUSE, "the block declares %u bytes of static shared memory; a GPU has %zu without dynamic", running.static_bytes,
         STATIC_SHARED);
  if (running.static_bytes + running.launch->smem > DYNAMIC_SHARED)
    fail(MISUSE, "%u bytes of static and %u of dynamic shared memory are more than the %zu a GPU has", running.static_bytes,
         running.launch->smem, DYNAMIC_SHARED);
  if (!place(a, a->bytes)) fail(MISUSE, "there is no memory for shared array %s", a->name);
  return a->address;
}

char* dynamic_shared(unsigned align) {
  SharedArray& a = dynamic_array;
  if (a.launch == machine.launch) {
    if (reinterpret_cast<uintptr_t>(a.address) % align)
      fail(MISUSE, "dynamic shared memory is declared again with a wider alignment of %u bytes", align);
    return a.address + machine.current->block->rank * a.stride;
  }
  a.bytes = running.launch->smem;
  a.align = align;
  if (!place(&a, DYNAMIC_SHARED)) fail(MISUSE, "there is no memory for dynamic shared memory");
  return a.address + machine.current->block->rank * a.stride;
}

const SharedArray* placed_dynamic() { return dynamic_array.launch == machine.launch ? &dynamic_array : nullptr; }

void begin_shared() {
  running.array_count = 0;
  running.static_bytes = 0;
  machine.shared_low = machine.shared_high = nullptr;
}

void poison_shared() {
  for (int i = 0; i < running.array_count; ++i) poison(*running.arrays[i]);
}

void check_shared() {
  for (int i = 0; i < running.array_count; ++i) {
    const SharedArray& a = *running.arrays[i];
    for (unsigned r = 0; r < running.launch->cluster; ++r) {
      const char *pages = copy_pages(a, r), *base = a.address + r * a.stride;
      const char* at = find_changed_canary(pages, base, canary());
      if (!at) at = find_changed_canary(base + a.bytes, pages + a.pages, canary());
      if (!at) continue;
      const Dim3 b = running.blocks[r].index;
      return fail_outside(OUT_OF_BOUNDS, "write %s shared array %s (%u bytes) at byte offset %td, in block (%u, %u, %u)",
                          at < base ? "before" : "past", a.name, a.bytes, at - base, b.x, b.y, b.z);
    }
  }
}

SharedArray* array_of(const char* address, unsigned* rank) {
  for (int i = 0; i < running.array_count; ++i) {
    SharedArray& a = *running.arrays[i];
    if (address < a.mapping || address >= a.mapping + a.copies * a.stride + SHARED_GUARD) continue;
    *rank = 0;
    while (*rank + 1 < a.copies && address >= copy_pages(a, *rank + 1) - SHARED_GUARD / 2) ++*rank;
    return &a;
  }
  return nullptr;
}

bool is_shared(const char* address) {
  unsigned rank;
  return array_of(address, &rank) != nullptr;
}

}  // namespace lane_rt
