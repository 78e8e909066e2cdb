// What a block of a streaming projection computes, and in which order.
//
// A warp takes whole panels of `pretile`, or some columns of one, through all slices of K that the block has: a panel is one run
// of bytes, and no other warp has to do with its sums.
#pragma once
#include "hopper.cuh"
#include "projection_rows.cuh"

namespace stream {

// Whether a warp takes two panels together: activations are read once for both. For 64 words of sequences they are as many bytes
// as four blocks of weights, more than shared memory can give beside the products.
template <int WORDS, int COLS>
constexpr bool TOGETHER = WORDS * COLS >= 64;

constexpr int SCHEDULERS = 4;  // of a multiprocessor: warp i of a block is on scheduler i % 4

// The panels first, first + stride, .. of a block, shared out in units, and bands of a unit a warp, all at one slice at a time.
// Where a warp takes two panels together, units are pairs, then panels alone. Where all blocks have as many panels, a multiple of
// the schedulers, and few are left, two blocks share one of those: each has half of its columns, in two units.
template <bool TOGETHER>
struct Order {
  int slice0, slices, first, stride, panels, warps, units, pairs;
  bool shares;

  __device__ Order(lane::Slices share, int first_panel, int step, int all, int takers)
      : slice0(share.first), slices(share.last - share.first), first(first_panel), stride(step), warps(takers), pairs(0), shares(false) {
    const int even = all / step, left = all - even * step;
    units = panels = even + (first < left);
    if (!TOGETHER || even + (left > 0) <= warps) return;
    const int fours = warps / SCHEDULERS * SCHEDULERS, fewer = (warps - 2) / SCHEDULERS * SCHEDULERS;
    if (even % SCHEDULERS == 0 && even >= fewer && even <= 2 * fewer && 2 * left <= step) {
      shares = first < 2 * left;
      panels = even + shares, units = fewer + 2 * shares;
    } else if (panels <= 2 * fours) {
      units = fours;
    } else {
      units = min(panels, (panels + 2 * warps - 1) / (2 * warps) * warps);
    }
    pairs = panels + shares - units;
  }

  __device__ int bands() const { return (units + warps - 1) / warps; }
  __device__ int wide() const { return TOGETHER && pairs > 0 ? 2 : 1; }  // panels of the widest unit

  // of a unit: whether it is a pair, or of a shared panel, which quarter of that it is, and its first panel in the block
  __device__ bool pair(int unit) const { return TOGETHER && unit < pairs; }
  __device__ bool shared(int unit) const { return TOGETHER && shares && unit >= units - 2; }
  // `first` is blockIdx.x, which is read anew: with one value more, uniform registers do not suffice for the loops that multiply
  __device__ int quarter(int unit) const { return blockIdx.x % 2 * 2 + unit - (units - 2); }
  __device__ int index(int unit) const { return TOGETHER ? min(unit + min(unit, pairs), panels - 1) : unit; }
  // panel `index` of the block
  __device__ int panel(int index) const {
    return TOGETHER && shares && index == panels - 1 ? index * stride + first / 2 : first + index * stride;
  }
};

}  // namespace stream
