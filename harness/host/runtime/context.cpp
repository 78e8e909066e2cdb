#include "context.h"

#include <stdint.h>

// Only callee-saved registers are kept: the compiler spills the rest around the call. The floating-point control
// word is the same in all fibers of a launch, so it is not switched. The jump through a register instead of `ret`
// keeps the return predictor out of it: `ret` to another stack is mispredicted every time.

#if defined(LANELOCK_UCONTEXT) || !(defined(__x86_64__) || defined(__aarch64__))
#include <ucontext.h>

extern "C" void lanelock_swap(void** from, void* to) {
  ucontext_t here;
  *from = &here;
  swapcontext(&here, static_cast<ucontext_t*>(to));
}

void* lane_rt::make_context(void* stack, size_t bytes, void (*entry)()) {
  auto top = (reinterpret_cast<uintptr_t>(stack) + bytes - sizeof(ucontext_t)) & ~uintptr_t{63};
  auto* context = reinterpret_cast<ucontext_t*>(top);
  getcontext(context);
  context->uc_stack.ss_sp = stack;
  context->uc_stack.ss_size = top - reinterpret_cast<uintptr_t>(stack);
  context->uc_link = nullptr;
  makecontext(context, entry, 0);
  return context;
}

#elif defined(__x86_64__)

asm(R"(
.text
.globl lanelock_swap
.type lanelock_swap,@function
.p2align 4
lanelock_swap:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  popq %rcx
  jmpq *%rcx
.size lanelock_swap,.-lanelock_swap
)");

void* lane_rt::make_context(void* stack, size_t bytes, void (*entry)()) {
  auto** top = reinterpret_cast<void**>((reinterpret_cast<uintptr_t>(stack) + bytes) & ~uintptr_t{15});
  // entry starts as after a call: the stack pointer is 8 below a multiple of 16
  *--top = nullptr;
  *--top = reinterpret_cast<void*>(entry);
  for (int i = 0; i < 6; ++i) *--top = nullptr;
  return top;
}

#else

asm(R"(
.text
.globl lanelock_swap
.type lanelock_swap,%function
.p2align 4
lanelock_swap:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  br x30
.size lanelock_swap,.-lanelock_swap
)");

void* lane_rt::make_context(void* stack, size_t bytes, void (*entry)()) {
  auto* top = reinterpret_cast<void**>((reinterpret_cast<uintptr_t>(stack) + bytes) & ~uintptr_t{15}) - 20;
  for (int i = 0; i < 20; ++i) top[i] = nullptr;
  top[11] = reinterpret_cast<void*>(entry);  // x30
  return top;
}

#endif
