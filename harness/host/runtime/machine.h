#pragma once
// The binary interface between a compiled kernel and the host runtime: what a fiber, a warp and a block are.
// A kernel library holds no state but a pointer to the Machine, so libraries of different compilers share one runtime.

#define LANELOCK_COUNTERS(X)                                                                                          \
  X(blocks) X(threads) X(barriers) X(syncwarps) X(collectives) X(shuffles) X(votes) X(dp4a) X(mma_s8) X(mma_e4m3)      \
  X(ldmatrix) X(load16) X(store16) X(cp_async) X(cp_async_bytes) X(atomics) X(polls) X(cluster_barriers) X(bulk_copies) \
  X(bulk_bytes) X(streamed_late) X(admitted) X(wgmma) X(store_bytes) X(stored_again)

namespace lane_rt {

enum : int { WARP = 32, MAX_THREADS = 1024, MAX_WARPS = 32, MAX_CLUSTER = 16, MAX_BARRIERS = 16, MAX_BULK = 64 };
enum Failure : int { NONE, OUT_OF_BOUNDS, DIVERGENCE, MISUSE, FLOATING_POINT };
enum Schedule : int { ASCENDING, DESCENDING, SEEDED };
enum CopyMode : int { EAGER, LATE, RANDOM };

struct Dim3 {
  unsigned x, y, z;
};

struct Counters {
#define LANELOCK_FIELD(name) unsigned long long name;
  LANELOCK_COUNTERS(LANELOCK_FIELD)
#undef LANELOCK_FIELD
};

// where a thread waits: the name of the operation and the source line that called it
struct Site {
  const char* what;
  const char* file;
  int line;
};

struct Fiber;
struct Block;
struct Copies;

// one rendezvous of a group of lanes; unread holds a bit for each lane that has yet to fetch the result
struct Meeting {
  unsigned mask, arrived, unread;
  Site site;
  alignas(64) unsigned long long word[WARP];
};

struct Fragments8 {  // the operands of one m16n8k32 product of bytes, four to a word along k
  alignas(32) unsigned a[16][8];  // [row][word]
  alignas(32) unsigned b[8][8];   // [word][column]
};

struct Registers {  // of one lane in an asynchronous product: they belong to it until it is waited for
  int* d;
  const unsigned* a;
};

// a rendezvous of the whole warp, with room for operands of bulk reductions and matrix fragments
struct FullMeeting : Meeting {
  union {
    alignas(64) float values[MAX_BULK][WARP];
    struct {
      Fragments8 operands;
      alignas(64) int ints[16][8];
      alignas(64) double doubles[16][8];
    } product;
    alignas(64) unsigned rows[WARP][4];  // ldmatrix
    Registers registers[WARP];           // wgmma
  };
  float result[MAX_BULK];
};

struct Warp {
  Fiber* ring;       // a lane that can run; the others follow by Fiber::next
  unsigned futile;   // passes since a lane last did something
  unsigned present;  // bits of the lanes that exist
  unsigned exited;   // bits of the lanes that are done
  unsigned open;     // which of the two full meetings the next collective uses
  unsigned index;    // in its block
  Block* block;
  Fiber* fibers;
  FullMeeting* full;        // [2], used in turn
  Meeting (*part)[2];       // [WARP][2] by the lowest lane of the mask; allocated when first used
  unsigned part_open;       // bit i: which of part[i] is used next
  unsigned char order[WARP];
};

enum State : int { UNBORN, RUNNING, AT_MEETING, AT_BARRIER, POLLING, EXITED };

struct Fiber {
  void* sp;
  Fiber *next, *prev;
  Warp* warp;
  Block* block;
  Dim3 thread;
  unsigned lane, bit;
  bool admitted;  // it has let the next launch start
  State state;
  unsigned wanted;  // the mask, or the number of the barrier, that it waits for
  Site site;
  Copies* copies;
  void* stack;  // lowest usable byte
};

struct Barrier {
  unsigned arrived, expected, generation;
  Site site;
};

struct Block {
  Dim3 index;
  unsigned rank;  // in its cluster
  unsigned exited;
  Barrier barriers[MAX_BARRIERS];
  Warp* warps;
  Fiber* fibers;
};

// a declaration of shared memory: address of rank 0's copy in this launch, the others follow at `stride`
struct SharedArray {
  const char *name, *file;
  int line;
  unsigned bytes, align;
  unsigned long long launch;
  char* address;
  unsigned long stride;
  char* mapping;
  unsigned long pages;   // bytes of the accessible pages of one copy
  unsigned copies;       // ranks that the mapping has room for
};

struct Machine {
  Fiber* current;
  void* main_sp;
  Dim3 grid, block_dim, cluster_dim;
  unsigned long long launch;    // number of this launch; shared arrays are placed anew in each
  unsigned long long progress;  // grows whenever something happens that can free a waiting thread
  Counters count;
  char *shared_low, *shared_high;  // the shared array last copied into: where an eager copy needs no look-up
  bool eager;
  // services
  void (*swap)(void** from, void* to);
  void (*give_up)(Fiber*);  // nothing in this warp can run now
  void (*barrier)(unsigned id, unsigned threads, Site);
  void (*cluster_barrier)(Site);
  void (*poll)(Site);  // yield until something happened; the caller tests its condition again
  void (*fail)(int kind, const char* format, ...);
  void (*meeting_refused)(Meeting*, unsigned mask, Site);
  Meeting* (*part_meeting)(Warp*, unsigned mask);
  char* (*place_shared)(SharedArray*);
  bool (*is_shared)(const char* address);
  char* (*dynamic_shared)(unsigned align);
  void (*copy_async)(void* shared, const void* global, unsigned bytes, unsigned filled);
  void (*copy_commit)();
  void (*copy_wait)(unsigned pending);
  void (*copy_arrive)(void* barrier);
  void (*barrier_init)(void* barrier, unsigned arrivals);
  void (*barrier_arrive)(void* barrier, unsigned bytes);
  bool (*barrier_done)(void* barrier, unsigned parity);
  void (*bulk_copy)(void* shared, const void* global, unsigned bytes, void* barrier, bool once);
  char* (*of_block)(char* shared, unsigned rank);
  void (*check_raised)(const void* flag, bool cluster);
  void (*fence_proxy)();
  unsigned (*shared_offset)(const void*);
  void (*wgmma_fence)();
  void (*wgmma_s8)(const FullMeeting&, unsigned columns, bool add);
  void (*wgmma_commit)();
  void (*wgmma_wait)(unsigned pending);
  void (*wgmma_check)(const int* d);
  void (*product_s8)(const Fragments8&, int (*out)[8]);  // [16][8]
  void (*product_e4m3)(const Fragments8&, double (*out)[8]);
  void (*stored)(const char* address, unsigned long bytes);  // by a kernel that is watched
};

}  // namespace lane_rt
