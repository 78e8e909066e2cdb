#pragma once
// What only Hopper has, with two bodies: PTX on a GPU (hopper_ptx.cuh), models on the host (harness/host/runtime/hopper.h).
//
// A barrier_t counts arrivals and bytes: a phase ends when all arrivals have come and all bytes that they announced have
// been copied. Phases have alternate parity, from 0; a wait for a parity returns at once where the phase that runs has the
// other one, so that a thread that skips a phase waits for one long over and reads what nobody has filled yet.
#include "device.cuh"

struct alignas(8) barrier_t {
  unsigned long long state;
};

#ifdef LANELOCK_HOST
#include "hopper.h"
#else
#include "hopper_ptx.cuh"
#endif
