// What a block of a streaming projection computes, and in which order.
//
// A warp takes whole panels of `pretile`, each through all slices of K that the block has: a panel is one run of bytes, and no
// other warp has to do with its sums.
#pragma once
#include "hopper.cuh"
#include "projection_rows.cuh"

namespace stream {

// The panels first, first + stride, .. of a block, by bands of one panel a warp, all at one slice at a time.
struct Order {
  int slice0, slices, first, stride, panels, warps;

  __device__ Order(lane::Slices share, int first_panel, int step, int all, int takers)
      : slice0(share.first), slices(share.last - share.first), first(first_panel), stride(step),
        panels((all - first_panel + step - 1) / step), warps(takers) {}

  __device__ int bands() const { return (panels + warps - 1) / warps; }
  __device__ int panel(int index) const { return first + index * stride; }
};

}  // namespace stream
