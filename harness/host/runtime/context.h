#pragma once
// Context switch between fibers. A saved context is a stack pointer; swap stores ours and continues the other.
#include <stddef.h>

namespace lane_rt {

extern "C" void lanelock_swap(void** from, void* to);

// a context that calls entry() on the given stack when it is first continued; entry never returns
void* make_context(void* stack, size_t bytes, void (*entry)());

}  // namespace lane_rt
