// What a streaming projection computes in each of its blocks, as its own order tells: unit by unit.
#include "stream_units.cuh"

// units: the panels of a unit, or -1, and its first quarter of the columns and how many; counts: units and bands
__global__ void __launch_bounds__(32)
stream_units(int* __restrict__ units /* [grid, most, 4] */, int* __restrict__ counts /* [grid, 2] */, int panels, int warps, int most) {
  const stream::Order<true> order(lane::Slices(0, 1), blockIdx.x, gridDim.x, panels, warps);
  if (threadIdx.x == 0) counts[blockIdx.x * 2] = order.units, counts[blockIdx.x * 2 + 1] = order.bands();
  for (int unit = threadIdx.x; unit < most; unit += 32) {
    int* to = units + (blockIdx.x * most + unit) * 4;
    const bool is = unit < order.units, shared = is && order.shared(unit);
    to[0] = is ? order.panel(order.index(unit)) : -1;
    to[1] = is && order.pair(unit) ? order.panel(order.index(unit) + 1) : -1;
    to[2] = shared ? order.quarter(unit) : 0;
    to[3] = !is ? 0 : shared ? 1 : 4;
  }
}
