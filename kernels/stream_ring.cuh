// The stream of weights of one warp: bulk copies in the order in which it multiplies, and the ring that they fill.
#pragma once
#include "stream_units.cuh"

namespace stream {

// Copies of the units index, index + warps, .. of a block, `span` neighbouring chunks of a panel at a time. Where warps take two
// panels together span is 1: a copy of each is a stage, which needs no count.
template <int BYTES, bool TOGETHER>  // of a chunk
struct Feed {
  const Order<TOGETHER>& order;
  const unsigned char* tiles;
  int chunks, span, index;  // chunks: of a slice
  int at, left;             // the next chunk, and how many of its panel are not asked for

  __device__ bool more() const { return index < order.units; }
  __device__ int count() const { return min(left, span); }
  __device__ bool pair() const { return order.pair(index); }
  __device__ const unsigned char* chunk(int panel) const {
    return tiles + lane::widened(at + panel * order.stride * lane::SLICES * chunks, BYTES);
  }
  __device__ void enter() {
    left = order.slices * chunks, at = (order.panel(order.index(index)) * lane::SLICES + order.slice0) * chunks;
  }
  __device__ void next() {
    at += span, left -= span;
    if (left > 0) return;
    index += order.warps;
    enter();
  }
};

// Stages of one warp, and the barrier of each.
template <int BYTES>
struct Ring {
  unsigned char* memory;
  barrier_t* full;
  int stages, bytes, used = 0;  // bytes: of a stage
  unsigned parity = 0;

  // the lane that sets up is the one that copies; before the others wait, the block must meet
  __device__ void init() {
    if (!lane::elected()) return;
#pragma unroll 1
    for (int i = 0; i < stages; ++i) lane::barrier_init(full + i, 1);
    lane::barrier_publish();
  }

  // the next copy into a stage
  template <class FEED>
  __device__ void fill(FEED& feed, int stage) {
    if (!feed.more()) return;
    if (lane::elected()) {
      if (feed.pair()) {
        lane::barrier_expect(full + stage, 2 * BYTES);
        lane::bulk_copy(at(stage), feed.chunk(0), BYTES, full + stage);
        lane::bulk_copy(at(stage) + BYTES, feed.chunk(1), BYTES, full + stage);
      } else {
        const int count = feed.count() * BYTES;
        lane::barrier_expect(full + stage, count);
        lane::bulk_copy(at(stage), feed.chunk(0), count, full + stage);
      }
    }
    feed.next();
    if (!feed.more()) lane::admit_next_launch();
  }

  __device__ unsigned char* at(int stage) const { return memory + stage * bytes; }

  __device__ const unsigned char* wait() const {
    lane::barrier_wait(full + used, parity);
    return at(used);
  }

  // the stage that was waited for is read by all lanes and takes the next copy
  template <class FEED>
  __device__ void refill(FEED& feed) {
    __syncwarp();
    fill(feed, used);
    if (++used == stages) used = 0, parity ^= 1;
  }
};

}  // namespace stream
