// The activations of a streaming projection: parts of a slice in shared memory, each filled again by the warp that finishes
// the last unit that reads it.
#pragma once
#include "stream_units.cuh"

namespace stream {

// A part is PART chunks of a slice. Its buffer holds codes as they come, [unit of 16 elements][word][row], and scales [row]
// [block], rows an odd multiple of 16 bytes apart, so that what lanes read at a time lies in different banks.
// Fill number pass * parts + p is part p of a pass through a slice, and goes to buffer (fill % held).
template <int WORDS, int COLS, int PART, int PANELS>
struct Activations {
  const Order<PANELS>& order;
  unsigned char* memory;  // of the block: the state of the buffers, and from byte `start` on the buffers
  int start;
  int room, held, chunks, KB, rows;
  const signed char* codes;  // by columns, of all rows; the block has COLS of them at most, `room` in shared memory
  const float* scales;

  // a part of one unit: its fill, and the buffer and the turn of that buffer that it has
  struct Place {
    int fill, buffer, turn;
  };

  static constexpr int MOST_HELD = 32, STATE_BYTES = MOST_HELD * 16, SCALE_PITCH = (PART | 1) * 16;

  // of a buffer: its barrier, the last fill asked for, the units that are finished of its pass
  __device__ barrier_t* full(int index) const { return reinterpret_cast<barrier_t*>(memory) + index; }
  __device__ unsigned* issued(int index) const { return reinterpret_cast<unsigned*>(memory) + 2 * MOST_HELD + index; }
  __device__ unsigned* done(int index) const { return issued(index) + MOST_HELD; }

  // of a buffer for so many rows: a unit, its codes, all of it. Fragments have rows that the batch may lack: theirs are
  // whatever lies there, and are never stored.
  __device__ static int unit_bytes(int rows) { return WORDS * rows * 16; }
  __device__ static int codes_bytes(int rows) { return 8 * PART * unit_bytes(rows); }
  __device__ static int bytes(int rows) { return codes_bytes(rows) + COLS * SCALE_PITCH; }

  __device__ int parts() const { return (chunks + PART - 1) / PART; }
  __device__ bool resident() const { return held >= order.slices * parts(); }
  __device__ int fills() const { return (resident() ? order.slices : order.passes()) * parts(); }

  __device__ void init() const {
    if (threadIdx.x >= held) return;
    lane::barrier_init(full(threadIdx.x), 33);  // the lanes' copies of scales, and the codes
    lane::barrier_publish();
    *issued(threadIdx.x) = threadIdx.x, *done(threadIdx.x) = 0;
  }

  __device__ unsigned char* buffer(int index) const { return memory + start + index * bytes(room); }

  // By one warp, which does not wait: codes come in one copy, or, where the launch has more rows than the block, in one a unit.
  __device__ void load(int fill) const {
    const int l = lane::opaque(threadIdx.x) % 32, first = lane::opaque(blockIdx.y) * COLS;
    const int slice = order.slice0 + fill / parts() % order.slices;
    const int block = lane::slice_begin(slice, KB) + fill % parts() * PART * 4;
    const int left = lane::slice_begin(slice + 1, KB) - block, blocks = left < 0 ? 0 : left < 4 * PART ? left : 4 * PART;
    const int count = rows - first < COLS ? rows - first : COLS, lines = rows <= COLS ? 1 : 2 * blocks * WORDS;
    unsigned char* to = buffer(fill % held);
    const int bytes = rows <= COLS ? 2 * blocks * unit_bytes(rows) : count * 16;
    const signed char* from = codes + lane::widened(2 * block, unit_bytes(rows)) + first * 16;
    if (l == 0) lane::barrier_expect(full(fill % held), blocks ? lines * bytes : 0);
    if (blocks)
#pragma unroll 1
      for (int line = l; line < lines; line += 32)
        lane::bulk_copy<false>(to + line * room * 16, from + lane::widened(line, rows * 16), bytes, full(fill % held));
    to += codes_bytes(room);
    const float* from_scales = scales + lane::widened(first, KB) + block;
    if (KB % (4 * lane::SLICES) == 0) copy_whole_scales(to, from_scales, count, blocks);
    else copy_scales(to, from_scales, count, blocks);
    lane::cp_async_arrive(full(fill % held));
  }

  __device__ void copy_whole_scales(unsigned char* to, const float* from, int count, int blocks) const {
    const int l = lane::opaque(threadIdx.x) % 32, at = l % 8 * 4;
    if (at >= blocks) return;
#pragma unroll 1
    for (int row = l / 8; row < count; row += 4)
      lane::cp_async16(to + row * SCALE_PITCH + at * 4, from + lane::widened(row, KB) + at);
  }

  // one by one, where a slice is no whole chunks; zero past its end, where weights are zeros that a NaN must not meet
  __device__ void copy_scales(unsigned char* to, const float* from, int count, int blocks) const {
    const int l = lane::opaque(threadIdx.x) % 32;
    if (l >= 4 * PART) return;
#pragma unroll 1
    for (int row = 0; row < count; ++row)
      lane::cp_async4(to + row * SCALE_PITCH + l * 4, from + lane::widened(row, KB) + (l < blocks ? l : 0), l < blocks ? 4 : 0);
  }

  __device__ Place first(const Unit& u) const {
    const int fill = (resident() ? u.slice : u.band * order.slices + u.slice) * parts();
    return {fill, fill % held, fill / held};
  }
  __device__ void next(Place& p) const {
    ++p.fill;
    if (++p.buffer == held) p.buffer = 0, ++p.turn;
  }

  // A warp may come before its fill is asked for: the barrier's phase would then be taken for the one before the last.
  __device__ void wait(const Place& p) const {
    lane::await_flag<false>(issued(p.buffer), static_cast<unsigned>(p.fill));
    lane::barrier_wait(full(p.buffer), p.turn & 1);
  }

  // the warp that finishes a part of a pass fills its buffer for the part that takes it next
  __device__ void finish(const Place& p, const Unit& u) const {
    if (resident()) return;
    __syncwarp();
    bool last = false;
    if (lane::opaque(threadIdx.x) % 32 == 0) {
      last = atomicAdd(done(p.buffer), 1u) + 1 == static_cast<unsigned>(u.wide);
      if (last) *done(p.buffer) = 0;
    }
    if (!__shfl_sync(0xFFFFFFFFu, static_cast<int>(last), 0) || p.fill + held >= fills()) return;
    load(p.fill + held);
    __syncwarp();
    if (lane::opaque(threadIdx.x) % 32 == 0) lane::raise_flag<false>(issued(p.buffer), static_cast<unsigned>(p.fill + held));
  }

  // Where this lane reads a chunk, in bytes of `memory`: its row of ldmatrix, whose matrices are the halves of two blocks and
  // whose rows are the columns of one tile; the scales of columns 2t and 2t + 1.
  struct View {
    int codes, scales, pitch;  // pitch: of a unit

    __device__ void next() { codes += 8 * pitch, scales += 16; }
  };

  __device__ View view(const Place& p) const {
    const int l = lane::opaque(threadIdx.x) % 32, at = start + p.buffer * bytes(room), pitch = unit_bytes(room);
    return {at + l / 8 * pitch + l % 8 * 16, at + codes_bytes(room) + l % 4 * 2 * SCALE_PITCH, pitch};
  }
};

}  // namespace stream
