// A failure ends the launch: the message is kept, the fibers are abandoned, the caller gets an error code.
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "context.h"
#include "runtime.h"

namespace lane_rt {

static void record(int kind, const char* format, va_list list, const Fiber* at) {
  if (running.failure) return;
  running.failure = kind;
  char* text = running.message;
  const size_t room = sizeof running.message;
  size_t used = static_cast<size_t>(vsnprintf(text, room, format, list));
  if (used >= room) used = room - 1;
  if (at)
    snprintf(text + used, room - used, ", by thread (%u, %u, %u) of block (%u, %u, %u)", at->thread.x, at->thread.y, at->thread.z,
             at->block->index.x, at->block->index.y, at->block->index.z);
}

void fail(int kind, const char* format, ...) {
  va_list list;
  va_start(list, format);
  record(kind, format, list, machine.current);
  va_end(list);
  if (!machine.current) return;  // on the main stack: the caller sees running.failure
  void* abandoned;
  lanelock_swap(&abandoned, machine.main_sp);
}

void fail_outside(int kind, const char* format, ...) {
  va_list list;
  va_start(list, format);
  record(kind, format, list, nullptr);
  va_end(list);
}

}  // namespace lane_rt
