// A head vector of D elements over the 32 lanes of a warp: a lane owns PER = D / 32 neighbours.
// The contract's tree(PER) is dot(): a chain of fma over the owned elements from zero, then the xor tree.
#pragma once
#include "device.cuh"

namespace lane {

template <int D>
struct Head {
  static_assert(D == 32 || D == 64 || D == 128 || D == 256,
                "a head has 32, 64, 128 or 256 dims: a lane owns 1, 2, 4 or 8");
  static constexpr int PER = D / 32;
};

// a value as memory of type T will hold it
template <typename T>
__device__ inline float rounded(float x) {
  T stored;
  store(&stored, x);
  return load(&stored);
}

// PER neighbouring values of a lane, from float32 or f16 memory, by the widest load that PER allows.
template <int PER, typename T>
__device__ inline void load_owned(float (&v)[PER], const T* __restrict__ p) {
  constexpr int BYTES = PER * static_cast<int>(sizeof(T));
  constexpr int WIDE = BYTES < 16 ? BYTES : 16;
  struct alignas(WIDE) Piece {
    T at[WIDE / sizeof(T)];
  };
#pragma unroll
  for (int i = 0; i < PER; i += WIDE / static_cast<int>(sizeof(T))) {
    const Piece piece = *reinterpret_cast<const Piece*>(p + i);
#pragma unroll
    for (int j = 0; j < WIDE / static_cast<int>(sizeof(T)); ++j) v[i + j] = load(&piece.at[j]);
  }
}

template <int PER, typename T>
__device__ inline void store_owned(T* __restrict__ p, const float (&v)[PER]) {
  constexpr int BYTES = PER * static_cast<int>(sizeof(T));
  constexpr int WIDE = BYTES < 16 ? BYTES : 16;
  struct alignas(WIDE) Piece {
    T at[WIDE / sizeof(T)];
  };
#pragma unroll
  for (int i = 0; i < PER; i += WIDE / static_cast<int>(sizeof(T))) {
    Piece piece;
#pragma unroll
    for (int j = 0; j < WIDE / static_cast<int>(sizeof(T)); ++j) store(&piece.at[j], v[i + j]);
    *reinterpret_cast<Piece*>(p + i) = piece;
  }
}

// what this lane adds to a dot product, before the tree over lanes
template <int PER>
__device__ inline float owned_dot(const float (&a)[PER], const float (&b)[PER]) {
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < PER; ++i) sum = fmaf(a[i], b[i], sum);
  return sum;
}

template <int PER>
__device__ inline float dot(const float (&a)[PER], const float (&b)[PER]) {
  return warp_sum(owned_dot(a, b));
}

// y = (x / root(mean(x^2) + eps)) * w over one head of D elements
template <int D, int PER>
__device__ inline void head_rms_norm(float (&x)[PER], const float (&w)[PER], float eps) {
  const float root = finite_root(dot(x, x) / static_cast<float>(D) + eps);
  Divisor(root).divide(x);
#pragma unroll
  for (int i = 0; i < PER; ++i) x[i] = x[i] * w[i];
}

}  // namespace lane
