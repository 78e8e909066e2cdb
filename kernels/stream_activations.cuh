// The activations of a streaming projection: parts of a slice in shared memory, each filled again by the warp that finishes
// the last unit that reads it.
#pragma once
#include "stream_units.cuh"

namespace stream {

// A part is PART chunks of a slice. Its buffer holds codes [word][row], rows a multiple of 128 and 16 bytes apart, and
// scales [row][block], rows an odd multiple of 16 bytes apart, so that what lanes read at a time lies in different banks.
// Fill number pass * parts + p is part p of a pass through a slice, and goes to buffer (fill % held).
template <int WORDS, int COLS, int PART>
struct Activations {
  const Order& order;
  unsigned char* memory;  // of the block; the buffers begin at byte `start`
  int start;
  barrier_t* full;
  unsigned *issued, *done;  // a buffer each: the last fill asked for, and the units that are finished of its pass
  int room, held, chunks, KB, rows;
  const signed char* codes;  // of all rows; the block has COLS of them at most
  const float* scales;

  // a part of one unit: its fill, and the buffer and the turn of that buffer that it has
  struct Place {
    int fill, buffer, turn;
  };

  static constexpr int CODE_PITCH = PART * 128 + 16, SCALE_PITCH = (PART | 1) * 16, ROW_BYTES = WORDS * CODE_PITCH + SCALE_PITCH;

  __device__ int parts() const { return (chunks + PART - 1) / PART; }
  __device__ bool resident() const { return held >= order.slices * parts(); }
  __device__ int fills() const { return (resident() ? order.slices : order.passes()) * parts(); }

  __device__ void init() const {
    if (threadIdx.x >= held) return;
    lane::barrier_init(full + threadIdx.x, 1);
    lane::barrier_publish();
    issued[threadIdx.x] = threadIdx.x, done[threadIdx.x] = 0;
  }

  __device__ unsigned char* buffer(int index) const { return memory + start + index * (room * ROW_BYTES); }

  // by one warp: a row is one copy of codes a word, and one of scales where slices are whole chunks
  __device__ void load(int fill) const {
    const int l = lane::opaque(threadIdx.x) % 32, first = lane::opaque(blockIdx.y) * COLS;
    const int count = rows - first < COLS ? rows - first : COLS, slice = order.slice0 + fill / parts() % order.slices;
    const int block = lane::slice_begin(slice, KB) + fill % parts() * PART * 4;
    const int left = lane::slice_begin(slice + 1, KB) - block, blocks = left < 0 ? 0 : left < 4 * PART ? left : 4 * PART;
    const bool whole = KB % (4 * lane::SLICES) == 0;
    unsigned char* to = buffer(fill % held);
    unsigned char* to_scales = to + WORDS * room * CODE_PITCH;
    if (!whole) copy_scales(to_scales, first, count, block, blocks);
    if (l == 0) lane::barrier_expect(full + fill % held, count * blocks * (WORDS * lane::QUANTUM + (whole ? 4 : 0)));
    __syncwarp();
    if (blocks == 0) return;
#pragma unroll 1
    for (int line = l; line < count * WORDS; line += 32)
      lane::bulk_copy<false>(to + (line % WORDS * room + line / WORDS) * CODE_PITCH,
                             codes + (lane::widened(first * WORDS + line, KB) + block) * lane::QUANTUM, blocks * lane::QUANTUM,
                             full + fill % held);
    if (whole)
#pragma unroll 1
      for (int row = l; row < count; row += 32)
        lane::bulk_copy<false>(to_scales + row * SCALE_PITCH, scales + lane::widened(first + row, KB) + block, blocks * 4,
                               full + fill % held);
  }

  // scales one by one, zero past the slice's end, where weights are zeros that a NaN must not meet
  __device__ void copy_scales(unsigned char* to, int first, int count, int block, int blocks) const {
#pragma unroll 1
    for (int row = 0; row < count; ++row)
#pragma unroll 1
      for (int j = lane::opaque(threadIdx.x) % 32; j < 4 * PART; j += 32) {
        float* at = reinterpret_cast<float*>(to + row * SCALE_PITCH) + j;
        if (j < blocks) lane::cp_async4(at, scales + lane::widened(first + row, KB) + block + j);
        else *at = 0.0f;
      }
    lane::cp_async_commit();
    lane::cp_async_wait<0>();
    __syncwarp();
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
    lane::await_flag<false>(issued + p.buffer, static_cast<unsigned>(p.fill));
    lane::barrier_wait(full + p.buffer, p.turn & 1);
  }

  // the warp that finishes a part of a pass fills its buffer for the part that takes it next
  __device__ void finish(const Place& p, const Unit& u) const {
    if (resident()) return;
    __syncwarp();
    bool last = false;
    if (lane::opaque(threadIdx.x) % 32 == 0) {
      last = atomicAdd(done + p.buffer, 1u) + 1 == static_cast<unsigned>(u.wide);
      if (last) done[p.buffer] = 0;
    }
    if (!__shfl_sync(0xFFFFFFFFu, static_cast<int>(last), 0) || p.fill + held >= fills()) return;
    load(p.fill + held);
    __syncwarp();
    if (lane::opaque(threadIdx.x) % 32 == 0) lane::raise_flag<false>(issued + p.buffer, static_cast<unsigned>(p.fill + held));
  }

  // Where this lane reads a chunk, in bytes of `memory`: its rows of ldmatrix, whose matrices are the halves of
  // two blocks and whose rows are the columns of one tile; the scales of columns 2t and, `odd` bytes on, 2t + 1.
  struct View {
    int codes, scales, odd;

    __device__ void next() { codes += 128, scales += 16; }
  };

  __device__ View view(const Place& p) const {
    const int l = lane::opaque(threadIdx.x) % 32, at = start + p.buffer * (room * ROW_BYTES), column = l % 4 * 2;
    const auto row = [&](int r) { return r < room ? r : room - 1; };
    return {at + row(l % 8) * CODE_PITCH + l / 8 * 16,
            at + WORDS * room * CODE_PITCH + row(column) * SCALE_PITCH,
            (row(column + 1) - row(column)) * SCALE_PITCH};
  }
};

}  // namespace stream
