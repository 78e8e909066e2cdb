// A chain of products of one warpgroup, right or with one fault, whose B is described field by field.
#include "hopper.cuh"

enum Fault {
  RIGHT, NO_PROXY_FENCE, NO_FENCE, ONE_FENCE, NO_COMMIT, SHORT_WAIT, NO_WAIT, READ_BEFORE_WAIT, A_CHANGED, B_CHANGED, OTHER_OPERAND,
  THREE_WARPS
};

// y[c] = A[c] B[c], B read from an image of shared memory of `bytes` bytes. swizzle 4: the operand that kernels use.
template <int FAULT>
__global__ void __launch_bounds__(128)
wgmma_products(int* __restrict__ y /* [chunks, 64, 128] */, const unsigned* __restrict__ codes /* [chunks, 128, 4] */,
               const unsigned char* __restrict__ images /* [chunks, bytes] */, int chunks, int bytes, int start, int leading,
               int stride, int swizzle, long long extra) {
  DYNAMIC_SHARED_ALIGNED(1024, unsigned char, image);
  const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  for (int c = 0; c < chunks; ++c) {
    for (int i = 16 * threadIdx.x; i < bytes; i += 16 * 128) lane::store16(image + i, lane::load16(images + c * bytes + i));
    if (FAULT != NO_PROXY_FENCE) lane::fence_proxy();
    __syncthreads();
    unsigned a[4];
    for (int i = 0; i < 4; ++i) a[i] = codes[(c * 128 + threadIdx.x) * 4 + i];
    const unsigned at = lane::shared_offset(image) + start + (FAULT == OTHER_OPERAND && warp == 1 ? 16 : 0);
    unsigned long long b = at >> 4 | static_cast<unsigned long long>(leading >> 4) << 16 |
                           static_cast<unsigned long long>(stride >> 4) << 32 | static_cast<unsigned long long>(swizzle) << 62;
    if (swizzle == 4) b = lane::swizzled_operand(image + start);
    int d[64];
    if (FAULT != NO_FENCE && (FAULT != ONE_FENCE || c == 0)) lane::wgmma_fence();
    if (FAULT != THREE_WARPS || warp < 3) lane::wgmma_s8<false>(d, a, b | static_cast<unsigned long long>(extra));
    if (FAULT != NO_COMMIT) lane::wgmma_commit();
    if (FAULT == A_CHANGED) a[2] = 0;
    if (FAULT == B_CHANGED) {
      lane::store16(image + 16 * threadIdx.x, uint4{0, 0, 0, 0});
      lane::fence_proxy();
    }
    if (FAULT != READ_BEFORE_WAIT && FAULT != NO_WAIT) lane::wgmma_wait<FAULT == SHORT_WAIT>(d);
    for (int i = 0; i < 64; ++i)
      y[(c * 64 + 16 * warp + g + i / 2 % 2 * 8) * 128 + i / 4 * 8 + 2 * t + i % 2] = d[i];
    if (FAULT == READ_BEFORE_WAIT) lane::wgmma_wait<0>(d);
    __syncthreads();
  }
}

// y = A B + y, twice: the second product adds to the first
__global__ void __launch_bounds__(128)
wgmma_adds(int* __restrict__ y /* [64, 128] */, const unsigned* __restrict__ codes /* [128, 4] */,
           const unsigned char* __restrict__ images /* [16384] */) {
  DYNAMIC_SHARED_ALIGNED(1024, unsigned char, image);
  for (int i = 16 * threadIdx.x; i < 16384; i += 16 * 128) lane::store16(image + i, lane::load16(images + i));
  lane::fence_proxy();
  __syncthreads();
  unsigned a[4];
  for (int i = 0; i < 4; ++i) a[i] = codes[threadIdx.x * 4 + i];
  int d[64];
  const auto place = [&](int i) {
    return y + (threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + i / 2 % 2 * 8) * 128 + i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2;
  };
  for (int i = 0; i < 64; ++i) d[i] = *place(i);
  for (int block = 0; block < 2; ++block) {
    lane::wgmma_fence();
    lane::wgmma_s8<true>(d, a, lane::swizzled_operand(image + 32 * block));
    lane::wgmma_commit();
    lane::wgmma_wait<0>(d);
  }
  for (int i = 0; i < 64; ++i) *place(i) = d[i];
}
