// Products of rows with a weight laid out for them, by the processor's bfloat16 dot products or by
// its matrix unit (tiles.h).
//
// A weight comes in blocks of 32 outputs: for each pair of inputs, 32 times two values. A block is
// read once, in order, whatever the number of rows. Each result is one chain of additions along the
// inputs, so it does not depend on how many rows there are.
#pragma once

#include "tiles.h"

namespace {

constexpr int kRowTile = 12;       // rows that fit the registers beside a block's weights
constexpr int64_t kRowChunk = 96;  // rows that a thread takes at once

enum class Epilogue { kPlain, kAdd, kGate };

#if PACELINE_HAS_PRODUCTS

template <int R>
void multiply(const bf16* rows, int64_t stride, const bf16* weight, int64_t pairs,
              Floats (*out)[2]) {
  __m512 total[R][2];
  for (int r = 0; r < R; ++r) total[r][0] = total[r][1] = _mm512_setzero_ps();
  for (int64_t p = 0; p < pairs; ++p, weight += 2 * kBlock) {
    const __m512bh left = (__m512bh)_mm512_loadu_si512(weight);
    const __m512bh right = (__m512bh)_mm512_loadu_si512(weight + kBlock);
    for (int r = 0; r < R; ++r) {
      int32_t pair;
      std::memcpy(&pair, rows + r * stride + 2 * p, sizeof pair);
      const __m512bh both = (__m512bh)_mm512_set1_epi32(pair);
      total[r][0] = _mm512_dpbf16_ps(total[r][0], left, both);
      total[r][1] = _mm512_dpbf16_ps(total[r][1], right, both);
    }
  }
  for (int r = 0; r < R; ++r) {
    out[r][0] = (Floats)total[r][0];
    out[r][1] = (Floats)total[r][1];
  }
}

template <int R>
void multiply_some(int64_t count, const bf16* rows, int64_t stride, const bf16* weight,
                   int64_t pairs, Floats (*out)[2]) {
  if (count == R) {
    multiply<R>(rows, stride, weight, pairs, out);
  } else if constexpr (R > 1) {
    multiply_some<R - 1>(count, rows, stride, weight, pairs, out);
  }
}

inline void store_some(bf16* target, Floats value, int64_t count) {
  bf16 values[kLanes];
  store(values, value);
  std::memcpy(target, values, size_t(std::max<int64_t>(0, std::min<int64_t>(count, kLanes))) *
                                  sizeof(bf16));
}

// What follows the sums of one row with block `b`; `row` counts from the product's first one.
template <Epilogue E>
inline void finish(const Product& p, int64_t b, int64_t row, Floats left, Floats right,
                   const bf16* added, bf16* out) {
  if (p.bias != nullptr) {
    left += load(p.bias + b * kBlock);
    right += load(p.bias + b * kBlock + kLanes);
  }
  if (E == Epilogue::kGate) {
    store(out + row * (p.outputs / 2) + b * kLanes, left / (exponential(-left) + 1.0f) * right);
    return;
  }
  const int64_t at = row * p.outputs + b * kBlock, room = p.outputs - b * kBlock;
  if (room >= kBlock) {
    if (E == Epilogue::kAdd) {
      left += load(added + at);
      right += load(added + at + kLanes);
    }
    store(out + at, left);
    store(out + at + kLanes, right);
    return;
  }
  if (E == Epilogue::kAdd) {
    for (int64_t i = 0; i < room; ++i)
      (i < kLanes ? left[i] : right[i - kLanes]) += to_float(added[at + i]);
  }
  store_some(out + at, left, room);
  store_some(out + at + kLanes, right, room - kLanes);
}

// By dot products of pairs.
template <Epilogue E>
void product_of_pairs(const Product& p, const bf16* rows, int64_t num_rows, const bf16* added,
                      bf16* out, int num_threads) {
  const int64_t num_blocks = (p.outputs + kBlock - 1) / kBlock;
  const int64_t num_chunks = (num_rows + kRowChunk - 1) / kRowChunk;
  const int64_t pairs = p.inputs / 2;
#pragma omp parallel for collapse(2) schedule(static) num_threads(num_threads)
  for (int64_t c = 0; c < num_chunks; ++c) {
    for (int64_t b = 0; b < num_blocks; ++b) {
      const bf16* weight = p.weight + b * p.inputs * kBlock;
      const int64_t end = std::min(num_rows, (c + 1) * kRowChunk);
      for (int64_t first = c * kRowChunk; first < end; first += kRowTile) {
        const int64_t count = std::min<int64_t>(kRowTile, end - first);
        Floats result[kRowTile][2];
        multiply_some<kRowTile>(count, rows + first * p.inputs, p.inputs, weight, pairs, result);
        for (int64_t r = 0; r < count; ++r)
          finish<E>(p, b, first + r, result[r][0], result[r][1], added, out);
      }
    }
  }
}

// rows [num_rows, inputs] -> out. kPlain: [num_rows, outputs]. kAdd: that plus `added`, which may
// be `out`. kGate: blocks hold 16 gates and 16 values each, outputs counts both, and out is
// silu(gate) * value, [num_rows, outputs / 2].
//
// Which way a product is computed depends on the weight alone, never on the number of rows.
template <Epilogue E>
void product(const Product& p, const bf16* rows, int64_t num_rows, const bf16* added, bf16* out,
             int num_threads) {
#if PACELINE_HAS_TILES
  if (serves_tiles(p.inputs))
    return product_of_tiles(
        p, rows, num_rows, num_threads, [&](int64_t b, int64_t row, const float* sums) {
          finish<E>(p, b, row, load(sums), load(sums + kLanes), added, out);
        });
#endif
  product_of_pairs<E>(p, rows, num_rows, added, out, num_threads);
}

#endif

}  // namespace
