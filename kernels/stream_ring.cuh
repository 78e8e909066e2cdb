// The stream of weights of one warp: bulk copies in the order in which it multiplies, and the ring that they fill.
#pragma once
#include "stream_units.cuh"

namespace stream {

// Copies of the panels index, index + warps, .. of a block, `span` neighbouring chunks at a time.
template <int BYTES>  // of a chunk
struct Feed {
  const Order& order;
  const unsigned char* tiles;
  int chunks, span, index;  // chunks: of a slice
  int at, left;             // the next chunk, and how many of its panel are not asked for

  __device__ bool more() const { return index < order.panels; }
  __device__ int count() const { return min(left, span); }
  __device__ void enter() {
    left = order.slices * chunks, at = (order.panel(index) * lane::SLICES + order.slice0) * chunks;
  }
  __device__ void next() {
    at += span, left -= span;
    if (left > 0) return;
    index += order.warps;
    enter();
  }
};

// Stages of one warp, room for `span` chunks of BYTES each, and the barrier of each.
template <int BYTES>
struct Ring {
  unsigned char* memory;
  barrier_t* full;
  int stages, span, used = 0;
  unsigned parity = 0;

  // the lane that sets up is the one that copies; before the others wait, the block must meet
  __device__ void init() {
    if (!lane::elected()) return;
#pragma unroll 1
    for (int i = 0; i < stages; ++i) lane::barrier_init(full + i, 1);
    lane::barrier_publish();
  }

  // the next copy into a stage
  __device__ void fill(Feed<BYTES>& feed, int stage) {
    if (!feed.more()) return;
    if (lane::elected()) {
      const int bytes = feed.count() * BYTES;
      lane::barrier_expect(full + stage, bytes);
      lane::bulk_copy(memory + stage * span * BYTES, feed.tiles + lane::widened(feed.at, BYTES), bytes, full + stage);
    }
    feed.next();
    if (!feed.more()) lane::admit_next_launch();
  }

  __device__ const unsigned char* wait() const {
    lane::barrier_wait(full + used, parity);
    return memory + used * span * BYTES;
  }

  // the stage that was waited for is read by all lanes and takes the next copy
  __device__ void refill(Feed<BYTES>& feed) {
    __syncwarp();
    fill(feed, used);
    if (++used == stages) used = 0, parity ^= 1;
  }
};

}  // namespace stream
