// The stacks of the fibers: made when first needed, kept for the life of the process, a guard page below each.
#include <stdlib.h>
#include <sys/mman.h>

#include "runtime.h"

namespace lane_rt {

constexpr size_t PITCH = STACK + PAGE;
static char* groups[MAX_CLUSTER];  // of MAX_THREADS stacks each

void* stack_of(unsigned fiber) {
  char*& group = groups[fiber / MAX_THREADS];
  if (!group) {
    void* p = mmap(nullptr, PITCH * MAX_THREADS, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) abort();
    group = static_cast<char*>(p);
    for (int i = 0; i < MAX_THREADS; ++i) mprotect(group + i * PITCH, PAGE, PROT_NONE);
  }
  return group + fiber % MAX_THREADS * PITCH + PAGE;
}

bool stack_overflow(const char* address, unsigned* fiber) {
  for (unsigned g = 0; g < MAX_CLUSTER; ++g) {
    if (!groups[g] || address < groups[g] || address >= groups[g] + PITCH * MAX_THREADS) continue;
    const size_t offset = static_cast<size_t>(address - groups[g]);
    *fiber = g * MAX_THREADS + static_cast<unsigned>(offset / PITCH);
    return offset % PITCH < PAGE;
  }
  return false;
}

}  // namespace lane_rt
