// The tensor-core products on whole tiles. s8 is exact; e4m3 sums exact products in float64, so the one rounding of a
// lane's result to float32 is the caller's.
#include "runtime.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace lane_rt {

#if defined(__AVX2__)

// even and odd bytes of each 32-bit word as pairs of int16, so that one vpmaddwd makes half of a word's dot product
static __m256i even(__m256i x) { return _mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8); }
static __m256i odd(__m256i x) { return _mm256_srai_epi16(x, 8); }

void product_s8(const Fragments8& f, int (*out)[8]) {
  __m256i be[8], bo[8];
  for (int w = 0; w < 8; ++w) {
    const __m256i x = _mm256_load_si256(reinterpret_cast<const __m256i*>(f.b[w]));
    be[w] = even(x);
    bo[w] = odd(x);
  }
  for (int row = 0; row < 16; ++row) {
    alignas(32) int ae[8], ao[8];
    const __m256i x = _mm256_load_si256(reinterpret_cast<const __m256i*>(f.a[row]));
    _mm256_store_si256(reinterpret_cast<__m256i*>(ae), even(x));
    _mm256_store_si256(reinterpret_cast<__m256i*>(ao), odd(x));
    __m256i sum = _mm256_setzero_si256();
    for (int w = 0; w < 8; ++w) {
      sum = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_set1_epi32(ae[w]), be[w]));
      sum = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_set1_epi32(ao[w]), bo[w]));
    }
    _mm256_store_si256(reinterpret_cast<__m256i*>(out[row]), sum);
  }
}

#else

void product_s8(const Fragments8& f, int (*out)[8]) {
  for (int row = 0; row < 16; ++row)
    for (int col = 0; col < 8; ++col) {
      int sum = 0;
      for (int w = 0; w < 8; ++w)
        for (int i = 0; i < 32; i += 8)
          sum += static_cast<int8_t>(f.a[row][w] >> i) * static_cast<int8_t>(f.b[w][col] >> i);
      out[row][col] = sum;
    }
}

#endif

static double e4m3_value(unsigned code) {
  const unsigned exponent = code >> 3 & 15, mantissa = code & 7;
  if ((code & 0x7F) == 0x7F) return __builtin_nan("");
  double magnitude = exponent ? (8 + mantissa) / 1024.0 : mantissa / 512.0;
  for (unsigned i = 1; i < exponent; ++i) magnitude *= 2;
  if (exponent) magnitude *= 2;
  return code & 0x80 ? -magnitude : magnitude;
}

struct E4m3Table {
  double value[256];
  E4m3Table() {
    for (unsigned code = 0; code < 256; ++code) value[code] = e4m3_value(code);
  }
};

void product_e4m3(const Fragments8& f, double (*out)[8]) {
  static const E4m3Table table;
  double b[32][8];
  for (int k = 0; k < 32; ++k)
    for (int col = 0; col < 8; ++col) b[k][col] = table.value[f.b[k / 4][col] >> k % 4 * 8 & 255];
  for (int row = 0; row < 16; ++row) {
    double sum[8] = {};
    for (int k = 0; k < 32; ++k) {
      const double a = table.value[f.a[row][k / 4] >> k % 4 * 8 & 255];
      for (int col = 0; col < 8; ++col) sum[col] += a * b[k][col];
    }
    for (int col = 0; col < 8; ++col) out[row][col] = sum[col];
  }
}

}  // namespace lane_rt
