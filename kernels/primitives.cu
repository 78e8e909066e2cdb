// One small kernel for each primitive of device.cuh, so that locks can hold both of its bodies to one contract.
// Fragments are loaded element by element from row-major matrices: what is held here is the layout itself.
#include "device.cuh"

constexpr unsigned WARP = 0xffffffffu;

__global__ void __launch_bounds__(128)
primitive_dp4a(const int* __restrict__ a /* [n] */, const int* __restrict__ b /* [n] */, int* __restrict__ c /* [n] */,
               int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) c[i] = lane::dp4a(a[i], b[i], c[i]);
}

__global__ void __launch_bounds__(128)
primitive_and_xor(const unsigned* __restrict__ x /* [n] */, const unsigned* __restrict__ kept /* [n] */,
                  const unsigned* __restrict__ turned /* [n] */, unsigned* __restrict__ y /* [n] */, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = lane::and_xor(x[i], kept[i], turned[i]);
}

// what each lane gets from lane ^ distance, lane + distance, lane - distance and lane 7 - lane, a row of y each
__global__ void __launch_bounds__(32)
primitive_shuffle(const unsigned* __restrict__ x /* [warps, 32] */, unsigned* __restrict__ y /* [warps, 4, 32] */,
                  long long* __restrict__ wide /* [warps, 32] */, int distance) {
  const int l = threadIdx.x;
  const unsigned v = x[blockIdx.x * 32 + l];
  y += blockIdx.x * 128 + l;
  y[0] = __shfl_xor_sync(WARP, v, distance);
  y[32] = __shfl_down_sync(WARP, v, distance);
  y[64] = __shfl_up_sync(WARP, v, distance);
  y[96] = __shfl_sync(WARP, v, (7 - l) & 31);
  wide[blockIdx.x * 32 + l] = __shfl_xor_sync(WARP, static_cast<long long>(v) << 20, distance);
}

// half a warp votes by itself, then all of it
__global__ void __launch_bounds__(32)
primitive_vote(const int* __restrict__ x /* [warps, 32] */, unsigned* __restrict__ y /* [warps, 4, 32] */) {
  const int l = threadIdx.x, p = x[blockIdx.x * 32 + l] > 0;
  y += blockIdx.x * 128 + l;
  y[0] = __ballot_sync(WARP, p);
  y[32] = __any_sync(WARP, p);
  y[64] = __all_sync(WARP, p);
  y[96] = l < 16 ? __ballot_sync(0x0000ffffu, p) : __ballot_sync(0xffff0000u, p);
}

__global__ void __launch_bounds__(32)
primitive_warp_sum(const float* __restrict__ x /* [warps, 8, 32] */, float* __restrict__ one /* [warps, 32] */,
                   float* __restrict__ three /* [warps, 3, 32] */, float* __restrict__ each /* [warps, 32] */,
                   float* __restrict__ of_eight /* [warps, 32] */, float* __restrict__ of_two /* [warps, 32] */,
                   float* __restrict__ shared /* [warps, 4, 32] */) {
  const int l = threadIdx.x;
  x += blockIdx.x * 256 + l, three += blockIdx.x * 96 + l, shared += blockIdx.x * 128 + l;
  one[blockIdx.x * 32 + l] = lane::warp_sum(x[0]);
  float v[3] = {x[0], x[32], x[64]};
  float quarters[4] = {v[0], v[1], v[2], v[0]};
  each[blockIdx.x * 32 + l] = lane::warp_sum_owned<false>(quarters);
  lane::warp_sum(v);
  three[0] = v[0], three[32] = v[1], three[64] = v[2];
  float w[8], u[4], v4[4];
  for (int i = 0; i < 8; ++i) w[i] = x[32 * lane::scattered<8>(i, l)];
  of_eight[blockIdx.x * 32 + l] = lane::warp_sum_owned<true>(w);
  for (int i = 0; i < 4; ++i) u[i] = x[32 * (4 + lane::scattered<4>(i, l))], v4[i] = x[32 * lane::scattered<4>(i, l)];
  of_two[blockIdx.x * 32 + l] = lane::warp_sum_scattered(v4, u);
  lane::warp_share(x[0], u, [=](int i) { return lane::scattered<4>(i, l); });
  for (int i = 0; i < 4; ++i) shared[32 * lane::scattered<4>(i, l)] = u[i];
}

// Sums of 8, 32 and 64 items, and of two sets of 16 at once: what a lane adds to item k is x[k], and it stores the items
// whose sums it is left with.
template <int M, int N>
__device__ inline void sum_items(const float* x /* [M, N, 32] */, float* y /* [M, N] */) {
  const int l = threadIdx.x, first = l * N / 32;
  float v[M][N];
#pragma unroll
  for (int i = 0; i < M; ++i)
#pragma unroll
    for (int k = 0; k < N; ++k) v[i][k] = x[(i * N + (k ^ first)) * 32 + l];
  lane::warp_sum_items(v);
#pragma unroll
  for (int i = 0; i < M; ++i)
#pragma unroll
    for (int k = 0; k < (N < 32 ? 1 : N / 32); ++k)
      if (N >= 32 || l % (32 / N) == 0) y[i * N + first + k] = v[i][k];
}

__global__ void __launch_bounds__(32)
primitive_sum_items(const float* __restrict__ x /* [warps, 136, 32] */, float* __restrict__ y /* [warps, 136] */) {
  x += blockIdx.x * 136 * 32, y += blockIdx.x * 136;
  sum_items<1, 8>(x, y);
  sum_items<1, 32>(x + 8 * 32, y + 8);
  sum_items<1, 64>(x + 40 * 32, y + 40);
  sum_items<2, 16>(x + 104 * 32, y + 104);
}

// The fragments of m16n8k32 with 8-bit operands, by the PTX ISA: lane l has group g = l / 4 and t = l % 4.
// Word i of A holds row g (+8 for odd i), bytes 4t (+16 for i of 2 and 3) .. +3; word i of B column g, bytes
// 4t + 16 i .. +3; value i of C and D row g (+8 for i of 2 and 3), column 2t (+1 for odd i).
struct Fragments {
  unsigned a[4], b[2];
};

__device__ inline Fragments fragments(const void* a, const void* b, int g, int t) {
  const unsigned* A = static_cast<const unsigned*>(a);  // [16][8] words
  const unsigned* B = static_cast<const unsigned*>(b);  // [8][8] words, a column of B behind the other
  return {{A[g * 8 + t], A[(g + 8) * 8 + t], A[g * 8 + t + 4], A[(g + 8) * 8 + t + 4]},
          {B[g * 8 + t], B[g * 8 + t + 4]}};
}

__global__ void __launch_bounds__(32)
primitive_mma_s8(const signed char* __restrict__ a /* [tiles, 16, 32] */,
                 const signed char* __restrict__ b /* [tiles, 8, 32] */, int* __restrict__ c /* [tiles, 16, 8] */) {
  const int tile = blockIdx.x, g = threadIdx.x / 4, t = threadIdx.x % 4;
  const Fragments f = fragments(a + tile * 512, b + tile * 256, g, t);
  int* at[2] = {c + tile * 128 + g * 8 + 2 * t, c + tile * 128 + (g + 8) * 8 + 2 * t};
  int d[4] = {at[0][0], at[0][1], at[1][0], at[1][1]};
  lane::mma_s8(d, f.a, f.b);
  at[0][0] = d[0], at[0][1] = d[1], at[1][0] = d[2], at[1][1] = d[3];
}

// e4m3 tensor cores exist from sm_89
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 890
__global__ void __launch_bounds__(32)
primitive_mma_e4m3(const e4m3_t* __restrict__ a /* [tiles, 16, 32] */,
                   const e4m3_t* __restrict__ b /* [tiles, 8, 32] */, float* __restrict__ c /* [tiles, 16, 8] */) {
  const int tile = blockIdx.x, g = threadIdx.x / 4, t = threadIdx.x % 4;
  const Fragments f = fragments(a + tile * 512, b + tile * 256, g, t);
  float* at[2] = {c + tile * 128 + g * 8 + 2 * t, c + tile * 128 + (g + 8) * 8 + 2 * t};
  float d[4] = {at[0][0], at[0][1], at[1][0], at[1][1]};
  lane::mma_e4m3(d, f.a, f.b);
  at[0][0] = d[0], at[0][1] = d[1], at[1][0] = d[2], at[1][1] = d[3];
}
#endif

// 32 rows of 16 bytes, four matrices of 8 rows; lane l hands the address of row l. Outputs [14][32]: x1, x2, x4, then
// the same transposed.
__global__ void __launch_bounds__(32)
primitive_ldmatrix(const unsigned char* __restrict__ x /* [tiles, 32, 16] */,
                   unsigned* __restrict__ y /* [tiles, 14, 32] */) {
  SHARED_ALIGNED(16, unsigned char, rows, [32][16]);
  const int l = threadIdx.x;
  lane::store16(rows[l], lane::load16(x + (blockIdx.x * 32 + l) * 16));
  __syncwarp();
  unsigned one[1], two[2], four[4], one_t[1], two_t[2], four_t[4];
  lane::ldmatrix_x1(one, rows[l]);
  lane::ldmatrix_x2(two, rows[l]);
  lane::ldmatrix_x4(four, rows[l]);
  lane::ldmatrix_x1_trans(one_t, rows[l]);
  lane::ldmatrix_x2_trans(two_t, rows[l]);
  lane::ldmatrix_x4_trans(four_t, rows[l]);
  y += blockIdx.x * 448 + l;
  y[0] = one[0], y[224] = one_t[0];
  for (int i = 0; i < 2; ++i) y[(1 + i) * 32] = two[i], y[(8 + i) * 32] = two_t[i];
  for (int i = 0; i < 4; ++i) y[(3 + i) * 32] = four[i], y[(10 + i) * 32] = four_t[i];
}

// A ring of STAGES asynchronous copies: chunk after chunk of 512 bytes through shared memory, each lane reading what
// another one copied. The last `tail` bytes of each 16 are not copied and must read as zeros.
template <int STAGES>
__global__ void __launch_bounds__(32)
primitive_copy(const unsigned char* __restrict__ x /* [chunks, 512] */,
               unsigned char* __restrict__ y /* [chunks, 512] */, int chunks, int tail) {
  static_assert(STAGES >= 2, "primitive_copy: a ring has at least two stages, one filling while one is read");
  SHARED_ALIGNED(16, unsigned char, ring, [STAGES][32][16]);
  const int l = threadIdx.x, other = 31 - l;
  for (int c = 0; c < STAGES - 1; ++c) {
    if (c < chunks) lane::cp_async16(ring[c][l], x + (c * 32 + l) * 16, 16 - tail);
    lane::cp_async_commit();
  }
  for (int c = 0; c < chunks; ++c) {
    // one group a step, also an empty one: the newest STAGES - 2 may still be on their way
    lane::cp_async_wait<STAGES - 2>();
    __syncthreads();  // chunk c is there for all lanes, and all have read the slot that is filled next
    const int next = c + STAGES - 1;
    if (next < chunks) lane::cp_async16(ring[next % STAGES][l], x + (next * 32 + l) * 16, 16 - tail);
    lane::cp_async_commit();
    lane::store16(y + (c * 32 + other) * 16, lane::load16(ring[c % STAGES][other]));
  }
}

// two pairs of warps, each with its own barrier; a warp reads what its partner wrote
__global__ void __launch_bounds__(128)
primitive_barrier(const int* __restrict__ x /* [128] */, int* __restrict__ y /* [128] */) {
  SHARED(int, words, [128]);
  const int i = threadIdx.x, partner = i ^ 32;
  words[i] = x[i];
  lane::named_barrier(1 + i / 64, 64);
  y[i] = words[partner];
}

__global__ void __launch_bounds__(128)
primitive_half(const float* __restrict__ x /* [n] */, half_t* __restrict__ code /* [n] */,
               float* __restrict__ back /* [n] */, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  code[i] = lane::to_half(x[i]);
  back[i] = lane::to_float(code[i]);
}

__global__ void __launch_bounds__(128)
primitive_e4m3(const float* __restrict__ x /* [n] */, e4m3_t* __restrict__ code /* [n] */,
               float* __restrict__ back /* [n] */, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  code[i] = lane::to_e4m3(x[i]);
  back[i] = lane::to_float(code[i]);
}

// a divisor and four quotients a thread
__global__ void __launch_bounds__(128)
primitive_divide(const float* __restrict__ x /* [n, 4] */, const float* __restrict__ d /* [n] */,
                 float* __restrict__ y /* [n, 4] */, float* __restrict__ one /* [n] */, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float v[4] = {x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]};
  const lane::Divisor divisor(d[i]);
  one[i] = divisor.of(v[0]);
  divisor.divide(v);
  y[4 * i] = v[0], y[4 * i + 1] = v[1], y[4 * i + 2] = v[2], y[4 * i + 3] = v[3];
}
