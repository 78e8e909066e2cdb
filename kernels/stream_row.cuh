// The products of a streaming projection of one activation row.
//
// One row leaves seven of the eight columns of a product without work. So the columns are the four blocks of a chunk, twice:
// block b of the weights times all of them has its own dot in column b. Lanes exchange the dots through shared memory: of two
// chunks, lane l goes on with row l % 16 of chunk l / 16, so that every dot is scaled once and not eight times.
#pragma once
#include "projection_tile.cuh"
#include "stream_activations.cuh"

namespace stream {

// Exchanges through dots [chunk][row][block] of its warp.
template <class W, class X>
struct Row {
  static constexpr int DOTS = 256, BYTES = 2 * DOTS;    // of a chunk, of a warp
  static constexpr int CODES = 128, SCALES = 4 * 64;  // of the activations of a chunk

  const X& x;
  unsigned char* dots;

  // Where this lane reads the activations of a chunk and of the next one, in bytes of x.memory: its row of ldmatrix, whose
  // matrices are the halves of the two and whose rows are the blocks, twice; and the scales.
  struct View {
    int codes, scales;
  };

  __device__ View view(const typename X::Place& place) const {
    const int l = lane_index(), at = x.at(place);
    return {at + (l % 4 * 2 + l / 8 % 2 + l / 16 * 8) * X::unit_bytes(x.room),
            at + X::codes_bytes(x.room, x.part) + lane::place_of_scale(blockIdx.y % 16) * 4};
  }

  // sum of row l % 16 += `count` chunks from `stage` on, with the activations at `view`. Products are on their way while the
  // dots before them are scaled and added: a warp alone on its panel waits for little.
  __device__ void multiply(float& sum, const unsigned char* stage, View& view, int count) const {
    Dots<1> one;
    if (count > 1) {
      Dots<2> two;
      products(two, stage, view.codes);
#pragma unroll 1
      for (; count > 3; count -= 2, stage += 2 * W::BYTES, next<2>(view)) {
        hand_over(two);
        products(two, stage + 2 * W::BYTES, view.codes + 2 * CODES);
        add<2>(sum, stage, view.scales);
      }
      hand_over(two);
      if (count > 2) products(one, stage + 2 * W::BYTES, view.codes + 2 * CODES);
      add<2>(sum, stage, view.scales);
      count -= 2, stage += 2 * W::BYTES, next<2>(view);
    } else {
      products(one, stage, view.codes);
    }
    if (count == 0) return;
    hand_over(one);
    add<1>(sum, stage, view.scales);
    next<1>(view);
  }

 private:
  __device__ static int lane_index() { return static_cast<int>(threadIdx.x % 32); }

  template <int COUNT>
  __device__ static void next(View& view) { view.codes += COUNT * CODES, view.scales += COUNT * SCALES; }

  // Dots of rows g and g + 8 with blocks 0 and 1 of each chunk, or for odd t with blocks 2 and 3.
  template <int COUNT>
  struct Dots {
    uint2 of[COUNT][2];
  };

  template <int COUNT>
  __device__ void products(Dots<COUNT>& found, const unsigned char* stage, int codes) const {
    unsigned columns[2 * COUNT];  // halves of the blocks of each chunk
    if constexpr (COUNT > 1) lane::ldmatrix_x4(columns, x.memory + codes);
    else lane::ldmatrix_x2(columns, x.memory + codes);
    const bool odd = lane_index() % 2;
#pragma unroll
    for (int chunk = 0; chunk < COUNT; ++chunk) {
      const unsigned pair[2] = {columns[2 * chunk], columns[2 * chunk + 1]};
      int d[4][4];
#pragma unroll
      for (int first = 0; first < 4; first += 2) {
        unsigned w[2][4];
#pragma unroll
        for (int b = 0; b < 2; ++b) {
          W::row_fragments(w, stage + chunk * W::BYTES, first, b);
          lane::mma_s8(d[first + b], w[b], pair, W::MAGIC);
        }
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        found.of[chunk][half].x = odd ? d[2][2 * half] : d[0][2 * half];
        found.of[chunk][half].y = odd ? d[3][2 * half + 1] : d[1][2 * half + 1];
      }
    }
  }

  // to where lanes exchange them
  template <int COUNT>
  __device__ void hand_over(const Dots<COUNT>& found) const {
    const int l = lane_index();
    unsigned char* to = dots + l / 4 * 16 + l % 2 * 8;
    __syncwarp();  // all have read what they exchanged last
#pragma unroll
    for (int i = 0; i < 2 * COUNT; ++i)
      if (l % 4 < 2) lane::store8(to + i * (DOTS / 2), found.of[i / 2][i % 2]);
    __syncwarp();
  }

  // sum += COUNT chunks, whose dots lie where lanes exchange them; blocks ascend
  template <int COUNT>
  __device__ void add(float& sum, const unsigned char* stage, int scales) const {
    const int l = lane_index(), chunk = COUNT > 1 ? l / 16 : 0;
    const uint4 four = lane::load16(dots + l * 16);
    const int dot[4][1] = {{static_cast<int>(four.x)}, {static_cast<int>(four.y)}, {static_cast<int>(four.z)}, {static_cast<int>(four.w)}};
    const typename W::ScalesOfRow s(stage + chunk * W::BYTES, l % 16);
    const unsigned char* from = x.memory + scales + chunk * SCALES;
    float product[4], xs[4];
#pragma unroll
    for (int b = 0; b < 4; ++b) {
      product[b] = lane::scaled(dot[b], s.of(b));
      xs[b] = *reinterpret_cast<const float*>(from + b * (SCALES / 4));
    }
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
#pragma unroll
      for (int b = 0; b < 4; ++b) sum = fmaf(product[b], xs[b], sum);
      sum = __shfl_sync(0xFFFFFFFFu, sum, l % 16 + 16 * i);
    }
  }
};

// One panel of a warp through all slices: totals and sums are a register each, of row l % 16.
template <class W, class WARP>
__device__ inline void run_row(const WARP& self, typename WARP::X::Place& place, int unit) {
  const auto& x = self.x;
  const Row<W, typename WARP::X> row{x, reinterpret_cast<unsigned char*>(self.totals)};
  const unsigned char* stage = nullptr;
  int staged = 0;  // chunks of the stage that are not multiplied
  float total = 0.0f;
  for (int slice = 0; slice < self.order.slices; ++slice) {
    float sum = 0.0f;
    for (int rest = x.chunks; rest > 0; x.next(place)) {
      x.wait(place);
      auto view = row.view(place);
      for (int n = min(rest, x.part); n > 0;) {
        if (staged == 0) stage = self.ring.wait(), staged = min((self.order.slices - 1 - slice) * x.chunks + rest, self.feed.span);
        const int count = min(n, staged);
        row.multiply(sum, stage, view, count);
        n -= count, rest -= count, staged -= count, stage += count * W::BYTES;
        if (staged == 0) self.ring.refill(self.feed);
      }
      if (!self.resident) x.release(place);
    }
    total = total + sum;
    const bool last = self.split || slice + 1 == self.order.slices;
    if (!last) continue;
    const int l = threadIdx.x % 32, n = self.order.panel(self.order.index(unit)) * 16 + l % 16, planes = self.split ? self.order.slice0 + slice : 0;
    if (l < 16 && n < self.N) self.y[lane::widened(planes * self.rows + static_cast<int>(blockIdx.y), self.y_pitch) + n] = total;
    total = 0.0f;
  }
}

}  // namespace stream
