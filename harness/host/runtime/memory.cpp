// Buffers between guard pages. The bytes between the buffer and the edge of its pages hold a canary.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "runtime.h"

namespace lane_rt {

static Region* regions;  // sorted by mapping
static size_t region_count, region_room;

char* reserve(size_t bytes) {
  void* p = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return p == MAP_FAILED ? nullptr : static_cast<char*>(p);
}

bool open_pages(char* from, size_t bytes) { return !bytes || !mprotect(from, bytes, PROT_READ | PROT_WRITE); }
void close_pages(char* from, size_t bytes) { mprotect(from, bytes, PROT_NONE); }

static uint8_t canary_at(const char* p, uint16_t canary) {
  return static_cast<uint8_t>(canary >> (reinterpret_cast<uintptr_t>(p) % 2 * 8));
}

static uint64_t canary_word(uint16_t canary) { return 0x0001000100010001ull * canary; }

void fill_canary(char* from, const char* to, uint16_t canary) {
  const uint64_t word = canary_word(canary);
  for (; from < to && reinterpret_cast<uintptr_t>(from) % 8; ++from) *from = static_cast<char>(canary_at(from, canary));
  for (; from + 8 <= to; from += 8) memcpy(from, &word, 8);
  for (; from < to; ++from) *from = static_cast<char>(canary_at(from, canary));
}

const char* find_changed_canary(const char* from, const char* to, uint16_t canary) {
  const uint64_t word = canary_word(canary);
  while (from < to) {
    uint64_t seen;
    if (reinterpret_cast<uintptr_t>(from) % 8 == 0 && from + 8 <= to && (memcpy(&seen, from, 8), seen == word)) {
      from += 8;
    } else if (static_cast<uint8_t>(*from) != canary_at(from, canary)) {
      return from;
    } else {
      ++from;
    }
  }
  return nullptr;
}

static size_t lower(const char* address) {  // the first region that begins after the address
  size_t low = 0, high = region_count;
  while (low < high) {
    const size_t mid = (low + high) / 2;
    if (regions[mid].mapping <= address) low = mid + 1;
    else high = mid;
  }
  return low;
}

const Region* region_of(const char* address) {
  const size_t i = lower(address);
  if (!i) return nullptr;
  const Region& r = regions[i - 1];
  return address < r.mapping + r.mapped ? &r : nullptr;
}

// Counts a store of a watched kernel to a buffer; shared memory and stacks are no buffers.
void stored(const char* address, unsigned long bytes) {
  auto* r = const_cast<Region*>(region_of(address));
  if (!r || address < r->base || address + bytes > r->end) return;
  const auto size = static_cast<size_t>(r->end - r->base);
  if (!r->stored) r->stored = static_cast<uint8_t*>(malloc(size));
  if (r->launch != machine.launch) memset(r->stored, 0, size);
  r->launch = machine.launch;
  machine.count.store_bytes += bytes;
  for (uint8_t* flag = r->stored + (address - r->base); bytes; --bytes, ++flag) {
    machine.count.stored_again += *flag;
    *flag = 1;
  }
}

static bool describe_change(const Region& r, char* text, size_t room) {
  const char* at = find_changed_canary(r.pages, r.base, r.canary);
  if (!at) at = find_changed_canary(r.end, r.pages_end, r.canary);
  if (!at) return false;
  const bool before = at < r.base;
  snprintf(text, room, "write %s the %s of buffer %s (%zu bytes) at byte offset %td", before ? "before" : "past",
           before ? "start" : "end", r.name, static_cast<size_t>(r.end - r.base), at - r.base);
  return true;
}

}  // namespace lane_rt

using namespace lane_rt;

// Returns the address, or null when there is no memory. align is a power of two; align_end puts the last byte at
// the upper guard as closely as the alignment allows, else the first byte at the lower guard.
extern "C" void* lanelock_alloc(const char* name, size_t bytes, size_t align, int align_end) {
  const size_t pages = (bytes + PAGE - 1) / PAGE * PAGE + (align > PAGE ? align : 0);
  char* mapping = reserve(pages + 2 * GUARD);
  if (!mapping) return nullptr;
  if (!open_pages(mapping + GUARD, pages)) {
    munmap(mapping, pages + 2 * GUARD);
    return nullptr;
  }
  Region r{};
  r.mapping = mapping;
  r.mapped = pages + 2 * GUARD;
  r.pages = mapping + GUARD;
  r.pages_end = r.pages + pages;
  r.canary = CANARY[align_end != 0];
  const uintptr_t first = reinterpret_cast<uintptr_t>(r.pages);
  const uintptr_t at = align_end ? (first + pages - bytes) / align * align : (first + align - 1) / align * align;
  r.base = reinterpret_cast<char*>(at);
  r.end = r.base + bytes;
  snprintf(r.name, sizeof r.name, "%s", name);
  fill_canary(r.pages, r.base, r.canary);
  memset(r.base, POISON, bytes);
  fill_canary(r.end, r.pages_end, r.canary);
  if (region_count == region_room) {
    region_room = region_room ? 2 * region_room : 64;
    regions = static_cast<Region*>(realloc(regions, region_room * sizeof(Region)));
  }
  const size_t i = lower(mapping);
  memmove(regions + i + 1, regions + i, (region_count++ - i) * sizeof(Region));
  regions[i] = r;
  return r.base;
}

extern "C" void lanelock_free(void* address) {
  const Region* r = region_of(static_cast<char*>(address));
  if (!r) return;
  munmap(r->mapping, r->mapped);
  free(r->stored);
  const size_t i = static_cast<size_t>(r - regions);
  memmove(regions + i, regions + i + 1, (--region_count - i) * sizeof(Region));
}

// 1 and a sentence when a canary byte around the buffer at this address changed; the canary is then restored.
// Also 1 for an address of no buffer: what cannot be checked is not in order.
extern "C" int lanelock_check(const void* address, char* text, size_t room) {
  const Region* r = region_of(static_cast<const char*>(address));
  if (!r) return snprintf(text, room, "address %p is in no buffer of this device", address), 1;
  if (!describe_change(*r, text, room)) return 0;
  fill_canary(r->pages, r->base, r->canary);
  fill_canary(r->end, r->pages_end, r->canary);
  return 1;
}
