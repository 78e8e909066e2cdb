#pragma once
// Included in front of a kernel that is watched: the hooks that compilers call at every access to memory when they are
// asked to check threads. Ours tell the runtime of the stores. No checker of the compiler is linked.
#include "cuda.h"

#define WATCH_HOOK extern "C" __attribute__((no_sanitize("thread"), visibility("hidden"), used)) inline

WATCH_HOOK void watch_store(void* p, unsigned long bytes) {
  // the library is loaded, and its pointer to the machine set, by watched code too
  if (lane_rt::machine) lane_rt::machine->stored(static_cast<char*>(p), bytes);
}

#define WATCH_SIZE(bytes)                                                              \
  WATCH_HOOK void __tsan_read##bytes(void*) {}                                         \
  WATCH_HOOK void __tsan_unaligned_read##bytes(void*) {}                               \
  WATCH_HOOK void __tsan_write##bytes(void* p) { watch_store(p, bytes); }              \
  WATCH_HOOK void __tsan_unaligned_write##bytes(void* p) { watch_store(p, bytes); }
WATCH_SIZE(1)
WATCH_SIZE(2)
WATCH_SIZE(4)
WATCH_SIZE(8)
WATCH_SIZE(16)
#undef WATCH_SIZE

WATCH_HOOK void __tsan_read_range(void*, unsigned long) {}
WATCH_HOOK void __tsan_write_range(void* p, unsigned long bytes) { watch_store(p, bytes); }
WATCH_HOOK void __tsan_func_entry(void*) {}
WATCH_HOOK void __tsan_func_exit() {}
WATCH_HOOK void __tsan_init() {}

// clang calls these in place of the library's functions
WATCH_HOOK void* __tsan_memcpy(void* to, const void* from, unsigned long bytes) {
  watch_store(to, bytes);
  return __builtin_memcpy(to, from, bytes);
}
WATCH_HOOK void* __tsan_memset(void* to, int byte, unsigned long bytes) {
  watch_store(to, bytes);
  return __builtin_memset(to, byte, bytes);
}
#undef WATCH_HOOK
