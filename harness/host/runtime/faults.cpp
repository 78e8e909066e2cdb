// Memory faults, divisions by zero and instructions that do not exist become, during a launch, an error that names what
// was done. The handlers are set for the launch only and whatever was there before is put back, so faulthandler and
// others keep working; a fault that is not ours goes to them.
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <ucontext.h>

#include "context.h"
#include "runtime.h"

namespace lane_rt {

constexpr int SIGNALS[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP};
constexpr int SIGNAL_COUNT = sizeof SIGNALS / sizeof *SIGNALS;
static struct sigaction previous[SIGNAL_COUNT];
static stack_t previous_stack;
static pthread_t owner;
constexpr size_t HANDLER_STACK = 1 << 16;

static const char* access_kind(void* context) {
#if defined(__x86_64__)
  return static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_ERR] & 2 ? "write" : "read";
#elif defined(__aarch64__)
  // the exception syndrome is the record with magic "ESR\1"; bit 6 is set for a write
  auto* p = reinterpret_cast<uint32_t*>(static_cast<ucontext_t*>(context)->uc_mcontext.__reserved);
  for (; p[1]; p += p[1] / 4)
    if (p[0] == 0x45535201) return p[2] >> 6 & 1 ? "write" : "read";
  return "access";
#else
  (void)context;
  return "access";
#endif
}

static void describe_buffer(const char* kind, const Region& r, const char* address) {
  const bool before = address < r.base;
  fail(OUT_OF_BOUNDS, "%s %s the %s of buffer %s (%zu bytes) at byte offset %td", kind, before ? "before" : "past",
       before ? "start" : "end", r.name, static_cast<size_t>(r.end - r.base), address - r.base);
}

static void describe_array(const char* kind, const SharedArray& a, unsigned rank, const char* address) {
  const char* base = a.address + rank * a.stride;
  fail(OUT_OF_BOUNDS, "%s %s shared array %s (%u bytes, %s:%d) at byte offset %td", kind, address < base ? "before" : "past",
       a.name, a.bytes, base_name(a.file), a.line, address - base);
}

static void explain(int signal, const siginfo_t* info, void* context) {
  if (signal == SIGFPE) return fail(MISUSE, "an integer divided by zero, or a quotient too large for its type");
  if (signal == SIGILL || signal == SIGTRAP)
    return fail(MISUSE, "an instruction that this processor does not have, or a trap");
  auto* address = static_cast<const char*>(info->si_addr);
  const char* kind = access_kind(context);
  unsigned which;
  if (info->si_code == SI_KERNEL)  // a general protection fault has no address
    return fail(OUT_OF_BOUNDS, "vector access to a misaligned address, or access through a wild pointer");
  if (stack_overflow(address, &which)) return fail(OUT_OF_BOUNDS, "the stack of %zu bytes of a thread overflowed", STACK);
  if (const SharedArray* a = array_of(address, &which)) return describe_array(kind, *a, which, address);
  if (const Region* r = region_of(address)) return describe_buffer(kind, *r, address);
  fail(OUT_OF_BOUNDS, "%s at address %p, which is %s", kind, info->si_addr,
       reinterpret_cast<uintptr_t>(address) < PAGE ? "a null pointer" : "in no buffer");
}

static void chain(int signal, siginfo_t* info, void* context) {
  int i = 0;
  while (SIGNALS[i] != signal) ++i;
  const struct sigaction& old = previous[i];
  if (old.sa_flags & SA_SIGINFO) return old.sa_sigaction(signal, info, context);
  if (old.sa_handler != SIG_DFL && old.sa_handler != SIG_IGN) return old.sa_handler(signal);
  sigaction(signal, &old, nullptr);  // the instruction is tried again and ends the process as it would have
}

static void on_fault(int signal, siginfo_t* info, void* context) {
  const bool ours = running.active && machine.current && pthread_equal(pthread_self(), owner);
  if (!ours) return chain(signal, info, context);
  explain(signal, info, context);  // leaves for the main stack; SA_NODEFER keeps the signal deliverable
}

void catch_faults() {
  static char stack[HANDLER_STACK];
  stack_t ours{};
  ours.ss_sp = stack;
  ours.ss_size = sizeof stack;
  owner = pthread_self();
  sigaltstack(&ours, &previous_stack);
  struct sigaction action {};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  for (int i = 0; i < SIGNAL_COUNT; ++i) sigaction(SIGNALS[i], &action, &previous[i]);
}

void restore_faults() {
  for (int i = 0; i < SIGNAL_COUNT; ++i) sigaction(SIGNALS[i], &previous[i], nullptr);
  sigaltstack(&previous_stack, nullptr);
}

}  // namespace lane_rt
