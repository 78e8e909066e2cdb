// Planted faults of `lanelock sanitize`: one for each tool of compute-sanitizer, which must see it before it is believed.

// memcheck: thread 0 writes one element behind the buffer
__global__ void planted_stray(float* y /* [N] */, int N) {
  y[threadIdx.x] = 1.0f;
  if (threadIdx.x == 0) y[N] = 2.0f;
}

// racecheck: each warp reads what the other wrote, with no barrier between
__global__ void planted_race(float* y /* [N] */, int N) {
  __shared__ float stage[64];
  stage[threadIdx.x] = static_cast<float>(threadIdx.x);
  y[threadIdx.x] = stage[N - 1 - threadIdx.x];
}

// initcheck: nobody wrote x
__global__ void planted_unset(float* y /* [N] */, const float* x /* [N] */) { y[threadIdx.x] = x[threadIdx.x] + 1.0f; }

// synccheck: half of a warp comes to the barrier
__global__ void planted_divergence(float* y /* [N] */) {
  if (threadIdx.x % 32 < 16) __syncthreads();
  y[threadIdx.x] = 1.0f;
}

// none of them: a clean copy through shared memory, which no tool may complain about
__global__ void planted_nothing(float* y /* [N] */, int N) {
  __shared__ float stage[64];
  stage[threadIdx.x] = static_cast<float>(threadIdx.x);
  __syncthreads();
  y[threadIdx.x] = stage[N - 1 - threadIdx.x];
}
