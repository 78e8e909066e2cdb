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

// what one access of so many bytes moves
template <int BYTES>
struct Raw;
template <>
struct Raw<2> {
  using Word = unsigned short;
};
template <>
struct Raw<4> {
  using Word = unsigned;
};
template <>
struct Raw<8> {
  using Word = uint2;
};
template <>
struct Raw<16> {
  using Word = uint4;
};

template <int PER, typename T>
struct Pieces {
  static constexpr int BYTES = PER * static_cast<int>(sizeof(T)), WIDE = BYTES < 16 ? BYTES : 16;
  static constexpr int EACH = WIDE / static_cast<int>(sizeof(T));
  using Word = typename Raw<WIDE>::Word;
  struct Piece {
    T at[EACH];
  };
};

// PER neighbouring values of a lane, from float32 or f16 memory, by the widest accesses that PER allows. ONCE: it is not
// touched again before much else is.
template <bool ONCE = false, int PER, typename T>
__device__ inline void load_owned(float (&v)[PER], const T* __restrict__ p) {
  using P = Pieces<PER, T>;
#pragma unroll
  for (int i = 0; i < PER; i += P::EACH) {
    const auto* word = reinterpret_cast<const typename P::Word*>(p + i);
    const auto piece = __builtin_bit_cast(typename P::Piece, ONCE ? load_once(word) : *word);
#pragma unroll
    for (int j = 0; j < P::EACH; ++j) v[i + j] = load(&piece.at[j]);
  }
}

// f16 neighbours are rounded in pairs, by one instruction
template <bool ONCE = false, int PER>
__device__ inline void store_owned(half_t* __restrict__ p, const float (&v)[PER]) {
  using P = Pieces<PER, half_t>;
  if constexpr (PER == 1) {
    store(p, v[0]);
  } else {
#pragma unroll
    for (int i = 0; i < PER; i += P::EACH) {
      struct {
        unsigned at[P::EACH / 2];
      } pairs;
#pragma unroll
      for (int j = 0; j < P::EACH / 2; ++j) pairs.at[j] = to_halves(v[i + 2 * j], v[i + 2 * j + 1]);
      const auto word = __builtin_bit_cast(typename P::Word, pairs);
      if constexpr (ONCE) store_once(p + i, word);
      else store_whole(p + i, word);
    }
  }
}

template <bool ONCE = false, int PER, typename T>
__device__ inline void store_owned(T* __restrict__ p, const float (&v)[PER]) {
  using P = Pieces<PER, T>;
#pragma unroll
  for (int i = 0; i < PER; i += P::EACH) {
    typename P::Piece piece;
#pragma unroll
    for (int j = 0; j < P::EACH; ++j) store(&piece.at[j], v[i + j]);
    const auto word = __builtin_bit_cast(typename P::Word, piece);
    if constexpr (ONCE) store_once(p + i, word);
    else store_whole(p + i, word);
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
