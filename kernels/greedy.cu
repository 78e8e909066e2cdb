// Greedy pick: the highest logit, the lowest index on a tie. A row with a NaN, or with nothing above -inf, has no pick:
// it is flagged, and token 0 is stored so that whoever reads the token stays inside the vocabulary.
//
// A logit and its index become one integer whose maximum is the pick, so that any order of taking maxima, in one block
// or in many, gives the same token.
#include "device.cuh"

constexpr int THREADS = 1024, WARPS = THREADS / 32;
constexpr int NAN_ORDER = 0x7fffffff;                            // above +inf: a NaN wins over every number
constexpr int NOTHING = static_cast<int>(0xff800000u ^ 0x7fffffffu);  // -inf
// why a row is frozen; LIVE is not
constexpr int LIVE = 0, SAW_NAN = 1, SAW_NOTHING = 2, CACHE_FULL = 3;

__device__ inline long long key_of(float logit, int index) {
  int order = static_cast<int>(lane::bits(logit + 0.0f));  // -0 becomes +0: they tie
  if (order < 0) order ^= 0x7fffffff;
  if (logit != logit) order = NAN_ORDER;
  return static_cast<long long>(order) * 4294967296LL + static_cast<unsigned>(~index);
}

__device__ inline long long higher(long long a, long long b) { return a > b ? a : b; }

constexpr long long LOWEST = -9223372036854775807LL - 1;

__device__ inline long long warp_highest(long long key) {
  for (int step = 16; step > 0; step /= 2) key = higher(key, __shfl_xor_sync(0xffffffffu, key, step));
  return key;
}

// the highest key of a block, known to its first warp
__device__ inline long long block_highest(long long key) {
  SHARED(long long, best, [WARPS]);
  const int warp = threadIdx.x / 32, lane_id = threadIdx.x % 32;
  key = warp_highest(key);
  if (lane_id == 0) best[warp] = key;
  __syncthreads();
  return warp_highest(lane_id < WARPS ? best[lane_id] : LOWEST);
}

__device__ inline long long highest_logit(const float* __restrict__ logits, int begin, int end) {
  long long key = LOWEST;
  for (int i = begin + threadIdx.x; i < end; i += THREADS) key = higher(key, key_of(logits[i], i));
  return block_highest(key);
}

__device__ inline long long highest_part(const long long* __restrict__ parts, int count) {
  long long key = LOWEST;
  for (int i = threadIdx.x; i < count; i += 32) key = higher(key, parts[i]);
  return warp_highest(key);
}

__device__ inline void pick(long long key, int* token, int* flag) {
  const int order = static_cast<int>(key >> 32);
  *flag = order == NAN_ORDER ? SAW_NAN : order <= NOTHING ? SAW_NOTHING : LIVE;
  *token = *flag == LIVE ? static_cast<int>(~static_cast<unsigned>(key)) : 0;
}

// A flagged sequence is frozen: nothing of it changes any more, whatever its logits. The token of position p + 1 is
// history[p + 1]; the one that finds no room in the cache is still picked and kept, and freezes its sequence.
__device__ inline void advance(long long key, int* token, int* flag, int* position, int* history, int limit) {
  if (*flag != LIVE) return;
  pick(key, token, flag);
  if (*flag != LIVE) return;
  history[*position + 1] = *token;
  if (*position + 1 < limit) *position += 1;
  else *flag = CACHE_FULL;
}

// Many blocks a row: block (row, tile) leaves the best key of its tile.
__global__ void __launch_bounds__(THREADS)
greedy_part(const float* __restrict__ logits /* [rows, V] */, int logits_pitch, int V, int tile,
            long long* __restrict__ parts /* [rows, tiles] */) {
  lane::overlap_launches();
  const long long row = blockIdx.x;
  const int begin = blockIdx.y * tile, end = begin + tile < V ? begin + tile : V;
  const long long key = highest_logit(logits + row * logits_pitch, begin, end);
  if (threadIdx.x == 0) parts[row * gridDim.y + blockIdx.y] = key;
}

__global__ void __launch_bounds__(THREADS)
greedy_pick(const float* __restrict__ logits /* [rows, V] */, int logits_pitch, int V,
            int* __restrict__ tokens /* [rows] */, int* __restrict__ flags /* [rows] */) {
  lane::overlap_launches();
  const long long row = blockIdx.x;
  const long long key = highest_logit(logits + row * logits_pitch, 0, V);
  if (threadIdx.x == 0) pick(key, tokens + row, flags + row);
}

__global__ void __launch_bounds__(32)
greedy_pick_parts(const long long* __restrict__ parts /* [rows, tiles] */, int tiles,
                  int* __restrict__ tokens /* [rows] */, int* __restrict__ flags /* [rows] */) {
  lane::overlap_launches();
  const long long row = blockIdx.x;
  const long long key = highest_part(parts + row * tiles, tiles);
  if (threadIdx.x == 0) pick(key, tokens + row, flags + row);
}

__global__ void __launch_bounds__(THREADS)
greedy_advance(const float* __restrict__ logits /* [rows, V] */, int logits_pitch, int V,
               int* __restrict__ tokens /* [rows] */, int* __restrict__ flags /* [rows] */,
               int* __restrict__ positions /* [rows] */, int* __restrict__ history /* [rows, limit + 1] */,
               int history_pitch, int limit) {
  lane::overlap_launches();
  const long long row = blockIdx.x;
  const long long key = highest_logit(logits + row * logits_pitch, 0, V);
  if (threadIdx.x == 0)
    advance(key, tokens + row, flags + row, positions + row, history + row * history_pitch, limit);
}

__global__ void __launch_bounds__(32)
greedy_advance_parts(const long long* __restrict__ parts /* [rows, tiles] */, int tiles,
                     int* __restrict__ tokens /* [rows] */, int* __restrict__ flags /* [rows] */,
                     int* __restrict__ positions /* [rows] */, int* __restrict__ history /* [rows, limit + 1] */,
                     int history_pitch, int limit) {
  lane::overlap_launches();
  const long long row = blockIdx.x;
  const long long key = highest_part(parts + row * tiles, tiles);
  if (threadIdx.x == 0)
    advance(key, tokens + row, flags + row, positions + row, history + row * history_pitch, limit);
}
