// The stream of weights of one warp: bulk copies in the order in which it multiplies, and the ring that they fill.
#pragma once
#include "stream_units.cuh"

namespace stream {

// Copies of the units unit, unit + step, ..: up to `span` neighbouring chunks of a slice at a time, of each panel.
template <int PANELS>
struct Feed {
  const Order<PANELS>& order;
  const unsigned char* tiles;
  int bytes, chunks, span, step;  // bytes: of a chunk
  Unit unit;
  int chunk = 0;
  const unsigned char* at = nullptr;

  __device__ bool more() const { return order.holds(unit); }
  __device__ int count() const { return chunks - chunk < span ? chunks - chunk : span; }
  __device__ void enter() {
    if (more()) at = tiles + lane::widened(order.panel(unit) * lane::SLICES + order.slice0 + unit.slice, chunks * bytes);
  }
  // bytes between the panels of a unit
  __device__ long long apart() const { return lane::widened(order.stride * lane::SLICES, chunks * bytes); }
  __device__ void next() {
    at += span * bytes, chunk += span;
    if (chunk < chunks) return;
    chunk = 0;
    order.advance(unit, step);
    enter();
  }
};

// Stages of one warp, room for `span` chunks of BYTES each of PANELS panels, and the barrier of each.
template <int BYTES, int PANELS>
struct Ring {
  unsigned char* memory;
  barrier_t* full;
  int stages, span, filled = 0, used = 0;
  unsigned parity = 0;

  __device__ void init() {
    if (lane::opaque(threadIdx.x) % 32 == 0) {
#pragma unroll 1
      for (int i = 0; i < stages; ++i) lane::barrier_init(full + i, 1);
      lane::barrier_publish();
    }
    __syncwarp();
  }

  __device__ void fill(Feed<PANELS>& feed) {
    if (!feed.more()) return;
    if (lane::elected()) {
      const int bytes = feed.count() * BYTES, panels = PANELS == 1 ? 1 : feed.order.count(feed.unit);
      unsigned char* to = memory + filled * PANELS * span * BYTES;
      lane::barrier_expect(full + filled, panels * bytes);
#pragma unroll
      for (int p = 0; p < PANELS; ++p)
        if (p < panels) lane::bulk_copy(to + p * span * BYTES, feed.at + p * feed.apart(), bytes, full + filled);
    }
    filled = filled + 1 < stages ? filled + 1 : 0;
    feed.next();
    if (!feed.more()) lane::admit_next_launch();
  }

  __device__ const unsigned char* wait() const {
    lane::barrier_wait(full + used, parity);
    return memory + used * PANELS * span * BYTES;
  }

  // the stage that was waited for is read by all lanes and takes the next copy
  __device__ void refill(Feed<PANELS>& feed) {
    __syncwarp();
    fill(feed);
    if (++used == stages) used = 0, parity ^= 1;
  }
};

}  // namespace stream
