#pragma once
// What the parts of the runtime share. One launch at a time: the caller holds the interpreter's lock.
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "machine.h"

namespace lane_rt {

constexpr size_t PAGE = 4096;
constexpr size_t GUARD = 1 << 22;         // inaccessible bytes on each side of a buffer
constexpr size_t SHARED_GUARD = 1 << 16;  // and of a shared array
constexpr size_t STACK = 1 << 16;
constexpr size_t STATIC_SHARED = 48 << 10;   // what a GPU gives without opt-in
constexpr size_t DYNAMIC_SHARED = 227 << 10;  // the most that sm_90 gives with it
constexpr int MAX_ARRAYS = 64;
constexpr int MAX_ARGUMENTS = 64;
constexpr uint8_t POISON = 0xFF;
// NaN as float32 and as float16, and not the poison. Two, for the two alignments: a kernel whose result depends on bytes
// between a buffer and the edge of its pages gives two results.
constexpr uint16_t CANARY[2] = {0x7FC3, 0xFFA5};

using Thunk = void (*)(void* const*);

struct Launch {  // mirrored in library.py
  Thunk thunk;
  unsigned grid[3], block[3];
  unsigned smem, cluster;
  int schedule;
  int copies;
  uint64_t schedule_seed, copies_seed;
  int align_end;
};

struct Random {  // splitmix64
  uint64_t state;
  uint64_t next() {
    uint64_t z = (state += 0x9E3779B97F4A7C15ull);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
  }
  unsigned below(unsigned n) { return static_cast<unsigned>((next() >> 32) * n >> 32); }
};

struct Running {  // the launch in progress
  const Launch* launch;
  void* arguments[MAX_ARGUMENTS];  // the address of each value
  Random schedule, copies;
  Block* blocks;  // of the cluster that runs
  Fiber* fibers;
  unsigned threads, warps;  // of a block
  SharedArray* arrays[MAX_ARRAYS];
  int array_count;
  unsigned static_bytes;
  int failure;
  bool active;
  char message[4096];
};

// one more item of a list that grows: anything with list, count and room
template <class List, class Item>
void append(List& l, const Item& item) {
  if (l.count == l.room) {
    l.room = l.room ? 2 * l.room : 64;
    l.list = static_cast<Item*>(realloc(l.list, l.room * sizeof(Item)));
  }
  l.list[l.count++] = item;
}

extern Machine machine;
extern Running running;

// scheduler.cpp
void run_grid();
void unlink(Fiber*);
// waiting.cpp
const char* base_name(const char* path);
void describe_waiting(char* text, size_t room);
void meeting_refused(Meeting*, unsigned mask, Site);
Meeting* part_meeting(Warp*, unsigned mask);
// failure.cpp
void fail(int kind, const char* format, ...);  // never returns to a fiber
void fail_outside(int kind, const char* format, ...);  // records only; for code that runs on the main stack
// memory.cpp
struct Region {
  char* mapping;
  size_t mapped;  // with guards
  char *pages, *pages_end;
  char *base, *end;  // what belongs to the caller
  uint16_t canary;
  uint8_t* stored;            // a flag a byte: the launch stored it; null until a watched kernel does
  unsigned long long launch;  // of the flags
  char name[96];
};
char* reserve(size_t bytes);  // inaccessible addresses
bool open_pages(char* from, size_t bytes);
void close_pages(char* from, size_t bytes);
void fill_canary(char* from, const char* to, uint16_t canary);
const char* find_changed_canary(const char* from, const char* to, uint16_t canary);
const Region* region_of(const char* address);  // the region whose mapping holds the address
void stored(const char* address, unsigned long bytes);
// shared.cpp
char* place_shared(SharedArray*);
char* dynamic_shared(unsigned align);
bool is_shared(const char* address);
void begin_shared();
void poison_shared();
void check_shared();
const SharedArray* placed_dynamic();  // null before a kernel has asked for it
SharedArray* array_of(const char* address, unsigned* rank);
// stacks.cpp
void* stack_of(unsigned fiber);  // lowest usable byte
bool stack_overflow(const char* address, unsigned* fiber);
// faults.cpp
void catch_faults();
void restore_faults();
// copies.cpp
void copy_async(void* shared, const void* global, unsigned bytes, unsigned filled);
void copy_commit();
void copy_wait(unsigned pending);
void copy_arrive(void* barrier);
bool arrive_next(const void* barrier);  // the oldest arrival at it that follows copies; false: there is none
void arrive_some();
void leave_copies(Fiber*);
void forget_copies(Fiber*);
void forget_arrivals();
void check_arrivals();
// bulk.cpp
void barrier_init(void* barrier, unsigned arrivals);
void barrier_arrive(void* barrier, unsigned bytes);
bool barrier_done(void* barrier, unsigned parity);
void bulk_copy(void* shared, const void* global, unsigned bytes, void* barrier, bool once);
void forget_barriers_and_bulk_copies();
void check_bulk_copies();
char* of_block(char* shared, unsigned rank);
void check_raised(const void* flag, bool cluster);
// wgmma.cpp
void fence_proxy();
void show_to_async(const char* shared, size_t bytes);  // what the copy engine wrote
bool shown_to_async(const char* shared, size_t bytes);  // whether fence_proxy has come after all that threads stored there
unsigned shared_offset(const void*);
void wgmma_fence();
void wgmma_s8(const FullMeeting&, unsigned columns, bool add);
void wgmma_commit();
void wgmma_wait(unsigned pending);
void wgmma_check(const int* d);
void forget_wgmma();
void check_wgmma();
// products.cpp
void product_s8(const Fragments8&, int (*out)[8]);
void product_e4m3(const Fragments8&, double (*out)[8]);

}  // namespace lane_rt
