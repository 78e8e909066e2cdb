// The units of a streaming projection, and the sums that pass from one to the next.
//
// A unit is PANELS panels of `pretile`, which share what is read of the activations, times one slice of K. A block goes
// through its panels in bands of `width` units, and through a band slice by slice, so that it needs the activations of few
// slices at a time.
#pragma once
#include "hopper.cuh"
#include "projection_rows.cuh"

namespace stream {

// One unit: number `index` of the `wide` of its band, times a slice counted from the block's first.
struct Unit {
  int band, slice, index, wide;
};

// The units of a block: of the panels first, first + stride, .. it has `panels`, in `groups` of PANELS.
template <int PANELS>
struct Order {
  int slice0, slices, first, stride, panels, groups, width;

  __device__ Order(lane::Slices share, int first_panel, int step, int all, int band_width)
      : slice0(share.first), slices(share.last - share.first), first(first_panel), stride(step),
        panels(first_panel < all ? (all - first_panel + step - 1) / step : 0), groups((panels + PANELS - 1) / PANELS),
        width(band_width) {}

  __device__ int passes() const { return (groups + width - 1) / width * slices; }
  __device__ int wide(int band) const { return groups - band * width < width ? groups - band * width : width; }
  __device__ bool holds(const Unit& u) const { return u.band * width < groups; }
  __device__ int panel(const Unit& u) const { return first + (u.band * width + u.index) * PANELS * stride; }
  // how many panels a unit has: the last may be short
  __device__ int count(const Unit& u) const {
    const int left = panels - (u.band * width + u.index) * PANELS;
    return left < PANELS ? left : PANELS;
  }

  __device__ Unit at(int unit) const {
    Unit u{0, 0, 0, wide(0)};
    advance(u, unit);
    return u;
  }
  __device__ void advance(Unit& u, int step) const {
    u.index += step;
    while (u.index >= u.wide && holds(u)) {
      u.index -= u.wide;
      if (++u.slice == slices) u.slice = 0, u.wide = wide(++u.band);
    }
  }
};

// Sums on their way from slice to slice, a slot a unit of the band: words of 4 floats [panel][tile][lane]. Slice s of a
// unit waits until slice s - 1 has been added: that unit came `wide` units earlier in the order in which every warp takes
// its own, so that waits are rare and never for ever.
template <int TILES>
struct Turns {
  using Sums = float[TILES][4];
  float* totals;
  unsigned* flags;
  int slots;

  __device__ static unsigned number(const Unit& u, int slice) { return static_cast<unsigned>(u.band * lane::SLICES + slice); }

  __device__ void init() const {
    if (threadIdx.x < slots) flags[threadIdx.x] = 0;
  }

  // sums becomes the total of slices 0 .. slice
  __device__ void take(Sums& sums, const Unit& u) const {
    lane::await_flag<false>(flags + u.index, number(u, u.slice));
    const float* from = totals + u.index * TILES * 128 + lane::opaque(threadIdx.x) % 32 * 4;
#pragma unroll
    for (int i = 0; i < TILES; ++i) {
      float(&s)[4] = sums[i];
      const uint4 v = u.slice ? lane::load16(from + i * 128) : uint4{0, 0, 0, 0};
      s[0] = lane::from_bits(v.x) + s[0], s[1] = lane::from_bits(v.y) + s[1];
      s[2] = lane::from_bits(v.z) + s[2], s[3] = lane::from_bits(v.w) + s[3];
    }
  }

  // gives them to the next slice; the last slice frees the slot for a unit of the next band
  __device__ void give(const Sums& sums, const Unit& u) const {
    float* at = totals + u.index * TILES * 128 + lane::opaque(threadIdx.x) % 32 * 4;
    if (u.slice < lane::SLICES - 1)
#pragma unroll
      for (int i = 0; i < TILES; ++i) {
        const float(&s)[4] = sums[i];
        lane::store16(at + i * 128, uint4{lane::bits(s[0]), lane::bits(s[1]), lane::bits(s[2]), lane::bits(s[3])});
      }
    __syncwarp();
    if (lane::opaque(threadIdx.x) % 32 == 0) lane::raise_flag<false>(flags + u.index, number(u, u.slice + 1));
  }
};

}  // namespace stream
