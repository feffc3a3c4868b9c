// Scores and weighted sums by the processor's dot products of bfloat16 pairs.
//
// A key's pairs lie side by side in memory; here those of 16 keys are laid side by side instead, so
// that a lane is a key and no sum crosses lanes. Laying them costs as much as scoring a few rows,
// and all rows of a tile share it. Each sum runs over the pairs in their order, however many rows
// are scored together.
#pragma once

#include "vectors.h"

namespace {

constexpr int64_t kMaxWidth = 512;

// Whether heads of this width can be done in pairs.
inline bool serves_pairs(int64_t width) {
  return PACELINE_HAS_PRODUCTS && width % (2 * kLanes) == 0 && width <= kMaxWidth;
}

#if PACELINE_HAS_PRODUCTS

constexpr int kKeys = 2 * kLanes;  // keys that are scored together, and weights rounded together

inline __m512bh as_pairs(__m512i value) { return (__m512bh)value; }

// One pair for all lanes.
inline __m512bh same_pair(const bf16* pair) {
  int32_t bits;
  std::memcpy(&bits, pair, sizeof bits);
  return as_pairs(_mm512_set1_epi32(bits));
}

// Rows of 16 32-bit numbers to columns.
inline void transpose(const __m512i* rows, __m512i* columns, int64_t stride) {
  __m512i two[16], four[16];
  for (int i = 0; i < 16; i += 2) {
    two[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
    two[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {  // lane l of four[i + c]: column 4 l + c of rows i to i + 3
    four[i] = _mm512_unpacklo_epi64(two[i], two[i + 2]);
    four[i + 1] = _mm512_unpackhi_epi64(two[i], two[i + 2]);
    four[i + 2] = _mm512_unpacklo_epi64(two[i + 1], two[i + 3]);
    four[i + 3] = _mm512_unpackhi_epi64(two[i + 1], two[i + 3]);
  }
  for (int c = 0; c < 4; ++c) {
    const __m512i even = _mm512_shuffle_i32x4(four[c], four[4 + c], 0x88),
                  even8 = _mm512_shuffle_i32x4(four[8 + c], four[12 + c], 0x88),
                  odd = _mm512_shuffle_i32x4(four[c], four[4 + c], 0xdd),
                  odd8 = _mm512_shuffle_i32x4(four[8 + c], four[12 + c], 0xdd);
    columns[c * stride] = _mm512_shuffle_i32x4(even, even8, 0x88);
    columns[(4 + c) * stride] = _mm512_shuffle_i32x4(odd, odd8, 0x88);
    columns[(8 + c) * stride] = _mm512_shuffle_i32x4(even, even8, 0xdd);
    columns[(12 + c) * stride] = _mm512_shuffle_i32x4(odd, odd8, 0xdd);
  }
}

// Lays kKeys keys side by side: pairs[2 p] holds pair p of the first 16, pairs[2 p + 1] of the rest.
inline void lay_keys(const bf16* keys, const int64_t* offsets, int64_t width, __m512i* pairs) {
  for (int64_t i = 0; i < width; i += 2 * kLanes)
    for (int part = 0; part < 2; ++part) {
      __m512i rows[16];
      for (int k = 0; k < 16; ++k)
        rows[k] = _mm512_loadu_si512(keys + offsets[16 * part + k] + i);
      transpose(rows, pairs + i + part, 2);
    }
}

// Scores of `R` query rows against kKeys keys that lie side by side; a row's are `stride` apart.
template <int R>
void score_pairs(const __m512i* pairs, int64_t width, const bf16* const* queries, float scale,
                 float* scores, int64_t stride) {
  __m512 total[R][2];
  for (int r = 0; r < R; ++r) total[r][0] = total[r][1] = _mm512_setzero_ps();
  for (int64_t i = 0; i < width; i += 2) {
    const __m512bh first = as_pairs(pairs[i]), second = as_pairs(pairs[i + 1]);
    for (int r = 0; r < R; ++r) {
      const __m512bh x = same_pair(queries[r] + i);
      total[r][0] = _mm512_dpbf16_ps(total[r][0], first, x);
      total[r][1] = _mm512_dpbf16_ps(total[r][1], second, x);
    }
  }
  for (int r = 0; r < R; ++r) {
    store(scores + r * stride, (Floats)total[r][0] * scale);
    store(scores + r * stride + kLanes, (Floats)total[r][1] * scale);
  }
}

// Rounds weights to bfloat16 where they lie: they then take the first half of their memory.
// count: a multiple of kKeys.
inline void round_weights(float* weights, int64_t count) {
  bf16* rounded = reinterpret_cast<bf16*>(weights);
  for (int64_t j = 0; j < count; j += kKeys) {
    const __m512i pairs = (__m512i)_mm512_cvtne2ps_pbh((__m512)load(weights + j + kLanes),
                                                       (__m512)load(weights + j));
    std::memcpy(rounded + j, &pairs, sizeof pairs);
  }
}

// Values weighted by `R` rows of rounded weights, `stride` apart, and summed; `C` times 32 columns.
// count: even.
template <int R, int C>
void weigh_pairs(const bf16* values, const int64_t* offsets, int64_t count, const bf16* weights,
                 int64_t stride, float* out, int64_t width) {
  __m512 low[R][C], high[R][C];
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < C; ++c) low[r][c] = high[r][c] = _mm512_setzero_ps();
  for (int64_t j = 0; j < count; j += 2) {
    __m512bh low_pairs[C], high_pairs[C];
    for (int c = 0; c < C; ++c) {
      const __m512i a = _mm512_loadu_si512(values + offsets[j] + 32 * c),
                    b = _mm512_loadu_si512(values + offsets[j + 1] + 32 * c);
      low_pairs[c] = as_pairs(_mm512_unpacklo_epi16(a, b));
      high_pairs[c] = as_pairs(_mm512_unpackhi_epi16(a, b));
    }
    for (int r = 0; r < R; ++r) {
      const __m512bh weight = same_pair(weights + r * stride + j);
      for (int c = 0; c < C; ++c) {
        low[r][c] = _mm512_dpbf16_ps(low[r][c], low_pairs[c], weight);
        high[r][c] = _mm512_dpbf16_ps(high[r][c], high_pairs[c], weight);
      }
    }
  }
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < C; ++c) {
      // Quarter l of `low` holds columns 8 l to 8 l + 3, of `high` the four behind them.
      const __m512 first = _mm512_shuffle_f32x4(low[r][c], high[r][c], 0x44),
                   second = _mm512_shuffle_f32x4(low[r][c], high[r][c], 0xee);
      float* target = out + r * width + 32 * c;
      store(target, (Floats)_mm512_shuffle_f32x4(first, first, 0xd8));
      store(target + kLanes, (Floats)_mm512_shuffle_f32x4(second, second, 0xd8));
    }
}

#endif

}  // namespace
