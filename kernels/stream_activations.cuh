// The activations of a streaming projection: parts of a slice in shared memory, brought once where all have room, else by a warp of
// their own.
#pragma once
#include "columns.cuh"
#include "stream_units.cuh"

namespace stream {

// A part is `part` chunks of a slice: the longer, the fewer copies and waits. Its buffer holds codes and scales as they come, by columns.
// Part p of slice s is fill (band * slices + s) * parts + p, or the same without bands where all have room, and goes to
// buffer (fill % held).
template <int WORDS, int COLS>
struct Activations {
  const Order<TOGETHER<WORDS, COLS>>& order;
  unsigned char* memory;  // of the block: the state of the buffers, and the buffers
  int room, held, chunks, part, parts, KB, rows;  // parts: of a slice
  const signed char* codes;  // of all rows; the block has COLS of them at most, `room` in shared memory
  const float* scales;

  // a part that a warp reads: the buffer and the turn of that buffer that it has
  struct Place {
    int buffer, turn;
  };

  static constexpr int MOST_HELD = 32, STATE_BYTES = MOST_HELD * 16;
  // Fragments have rows that the batch may lack: whatever lies there is read, behind the last buffer too, and never stored.
  // Rings lie behind that and begin with a line of 128 bytes: from other places Q4 of one row takes a tenth longer
  // (bench-projections-20261130T221009Z).
  static constexpr int BEHIND = COLS == 1 ? 128 : 16 * COLS;
  static_assert(BEHIND % 128 == 0, "stream: rings begin with a line of memory");

  // of a buffer: the barrier of its copies, and that of the warps that are done with it
  __device__ barrier_t* full(int index) const { return reinterpret_cast<barrier_t*>(memory) + index; }
  __device__ barrier_t* empty(int index) const { return full(index) + MOST_HELD; }

  // of so many rows: a unit, and the scales of a block; of a buffer: the codes, and all of it
  __device__ static int unit_bytes(int rows) { return WORDS * rows * 16; }
  __device__ static int line_bytes(int rows) { return lane::scale_rows(rows) * 4; }
  __device__ static int codes_bytes(int rows, int part) { return 8 * part * unit_bytes(rows); }
  __device__ static int bytes(int rows, int part) { return codes_bytes(rows, part) + 4 * part * line_bytes(rows); }

  __device__ int fills() const { return order.slices * parts; }  // of a band

  // by the warp that brings the first part
  __device__ void init() const {
    const int index = lane::opaque(threadIdx.x) % 32;
    if (index < held) {
      lane::barrier_init(full(index), 1), lane::barrier_init(empty(index), order.warps);
      lane::barrier_publish();
    }
    __syncwarp();
  }

  struct Part {
    unsigned char* to;
    const signed char* from;
    const float* from_scales;
    int blocks, buffer;
  };

  // Part `index` of the band for a buffer, up to its copies, which read what the launch ahead writes
  __device__ Part prepare(int index, int buffer) const {
    const int l = lane::opaque(threadIdx.x) % 32, first = lane::opaque(blockIdx.y) * COLS;
    const int slice = order.slice0 + index / parts, block = lane::slice_begin(slice, KB) + index % parts * part * 4;
    const int blocks = max(0, min(lane::slice_begin(slice + 1, KB) - block, 4 * part));
    unsigned char* to = memory + STATE_BYTES + buffer * bytes(room, part);
    // past the end of a slice weights are zeros, which a NaN must not meet
#pragma unroll 1
    for (int i = blocks * line_bytes(room) + l * 16; i < 4 * part * line_bytes(room); i += 32 * 16)
      lane::store16(to + codes_bytes(room, part) + i, uint4{0, 0, 0, 0});
    lane::fence_proxy();
    __syncwarp();
    return {to, codes + lane::widened(2 * block, unit_bytes(rows)) + first * 16,
            scales + lane::widened(block, lane::scale_rows(rows)) + first / 16 * 16, blocks, buffer};
  }

  // The copies of a part where the block has all rows of the launch: one of codes, one of scales.
  __device__ void start_copies(const Part& p) const {
    if (!lane::elected()) return;
    const int code_bytes = 2 * p.blocks * unit_bytes(rows), scale_bytes = p.blocks * line_bytes(rows);
    lane::barrier_expect(full(p.buffer), code_bytes + scale_bytes);
    if (p.blocks == 0) return;
    lane::bulk_copy<false>(p.to, p.from, code_bytes, full(p.buffer));
    lane::bulk_copy<false>(p.to + codes_bytes(room, part), p.from_scales, scale_bytes, full(p.buffer));
  }

  // Part `index` of the band into a buffer, by one warp, which does not wait: in one copy, or in one a line where the launch has
  // more rows than the block.
  __device__ void load(int index, int buffer) const {
    const Part p = prepare(index, buffer);
    if (rows <= COLS) return start_copies(p);
    const int l = lane::opaque(threadIdx.x) % 32, first = lane::opaque(blockIdx.y) * COLS;
    const int count = rows - first < COLS ? rows - first : COLS, lines = 2 * p.blocks * WORDS;
    const int wide = lane::scale_rows(rows) - first / 16 * 16, scale_bytes = (wide < lane::scale_rows(COLS) ? wide : lane::scale_rows(COLS)) * 4;
    if (lane::elected()) lane::barrier_expect(full(buffer), lines * count * 16 + p.blocks * scale_bytes);
    __syncwarp();
#pragma unroll 1
    for (int line = l; line < lines; line += 32)
      lane::bulk_copy<false>(p.to + line * room * 16, p.from + lane::widened(line, rows * 16), count * 16, full(buffer));
#pragma unroll 1
    for (int line = l; line < p.blocks; line += 32)
      lane::bulk_copy<false>(p.to + codes_bytes(room, part) + line * line_bytes(room), p.from_scales + lane::widened(line, lane::scale_rows(rows)),
                             scale_bytes, full(buffer));
  }

  // By a warp of its own: every fill of every band, or all but the first, each once all warps of the block are done with its buffer.
  __device__ void feed(bool first) const {
    Place place{0, 0};
    if (first) next(place);
    for (int band = 0; band < order.bands(); ++band)
      for (int index = band == 0 && first; index < fills(); ++index, next(place)) {
        // the parity of the turn before; in the first turn that of a phase long over, so that this passes at once
        lane::barrier_wait(empty(place.buffer), ~place.turn & 1);
        load(index, place.buffer);
      }
  }

  __device__ void next(Place& p) const {
    if (++p.buffer == held) p.buffer = 0, ++p.turn;
  }

  // A warp has waited for every fill of a buffer before, so that the phase that runs is never two ahead of it.
  __device__ void wait(const Place& p) const { lane::barrier_wait(full(p.buffer), p.turn & 1); }

  __device__ void release(const Place& p) const {
    __syncwarp();
    if (lane::elected()) lane::barrier_arrive(empty(p.buffer));
  }

  __device__ int at(const Place& p) const { return STATE_BYTES + p.buffer * bytes(room, part); }

  // Where this lane reads a chunk from tile `tile` on: its row of ldmatrix, whose matrices are the halves of a block of two tiles,
  // or of two blocks where there is one tile; and the scales of columns 2t and 2t + 1 of two tiles.
  struct View {
    const unsigned char *codes, *scales;
  };

  template <int TILES>
  __device__ View view(const Place& p, int tile) const {
    const int l = lane::opaque(threadIdx.x) % 32, pitch = unit_bytes(room);
    const unsigned char* from = memory + at(p);
    const int matrix = TILES == 1 ? l / 8 * pitch : l / 8 % 2 * pitch + l / 16 * 128;
    const int pair = tile / 2 * 64 + (COLS == 8 ? blockIdx.y : tile) % 2 * 8;
    return {from + matrix + l % 8 * 16 + tile * 128, from + codes_bytes(room, part) + l % 4 * 16 + pair};
  }

  __device__ void next(View& view) const { view.codes += 8 * unit_bytes(room), view.scales += 4 * line_bytes(room); }
};

}  // namespace stream
