// Products by the matrix unit that some processors have (AMX): 16 rows of 32 inputs times 32 inputs
// of 16 outputs in one instruction.
//
// The layout of weights is the one that dot products of pairs read: 16 pairs of inputs of 16 outputs
// are a tile as they lie. Rows that fill no tile are copied into one that has zeros for the rest; a
// row's sums do not depend on the rows beside it.
#pragma once

#include "vectors.h"

#if PACELINE_HAS_PRODUCTS && defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#define PACELINE_HAS_TILES 1
#else
#define PACELINE_HAS_TILES 0
#endif

namespace {

constexpr int kBlock = 2 * kLanes;  // outputs in a block

struct Product {
  const bf16* weight;  // [blocks, inputs / 2, 32, 2]
  const float* bias;   // [blocks * 32] or null
  int64_t inputs, outputs;
};

#if PACELINE_HAS_TILES

constexpr int kTileRows = 16;
constexpr int kTileInputs = 32;
constexpr int64_t kTileChunk = 16;  // tiles of rows that a thread takes at once

// Linux grants the unit's registers to a process that asks.
inline bool may_use_tiles() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  static const bool granted = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return granted;
}

inline bool serves_tiles(int64_t inputs) { return inputs % kTileInputs == 0 && may_use_tiles(); }

// All eight tiles of this thread: 16 rows of 64 bytes each.
inline void configure_tiles() {
  struct alignas(64) {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
  } shape = {};
  shape.palette = 1;
  for (int i = 0; i < 8; ++i) {
    shape.row_bytes[i] = 64;
    shape.rows[i] = kTileRows;
  }
  // Some compilers believe that only the first bytes are read, and drop what was written behind.
  asm volatile("" : : "r"(&shape) : "memory");
  _tile_loadconfig(&shape);
}

// sums[row][32] of one block: 16 rows, or 32 where there are two tiles of them.
template <bool IsTwo>
void multiply_tiles(const bf16* first, const bf16* second, int64_t inputs, const bf16* weight,
                    float* sums) {
  constexpr int64_t kSumBytes = kBlock * sizeof(float), kPairBytes = 2 * kBlock * sizeof(bf16);
  const int64_t row_bytes = inputs * int64_t(sizeof(bf16));
  _tile_zero(0);
  _tile_zero(1);
  if (IsTwo) {
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int64_t i = 0; i < inputs; i += kTileInputs, weight += kTileInputs * kBlock) {
    _tile_loadd(6, weight, kPairBytes);
    _tile_loadd(7, weight + kBlock, kPairBytes);
    _tile_loadd(4, first + i, row_bytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    if (IsTwo) {
      _tile_loadd(5, second + i, row_bytes);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, sums, kSumBytes);
  _tile_stored(1, sums + kLanes, kSumBytes);
  if (IsTwo) {
    _tile_stored(2, sums + kTileRows * kBlock, kSumBytes);
    _tile_stored(3, sums + kTileRows * kBlock + kLanes, kSumBytes);
  }
}

// Calls finish(block, row, its 32 sums) for all blocks and rows.
template <typename Finish>
void product_of_tiles(const Product& p, const bf16* rows, int64_t num_rows, int num_threads,
                      const Finish& finish) {
  const int64_t num_blocks = (p.outputs + kBlock - 1) / kBlock;
  const int64_t num_tiles = (num_rows + kTileRows - 1) / kTileRows;
  const int64_t num_chunks = (num_tiles + kTileChunk - 1) / kTileChunk;
  const int64_t num_whole = num_rows / kTileRows;
  static thread_local std::vector<bf16> filled;
  if (num_whole < num_tiles) {
    filled.assign(size_t(kTileRows * p.inputs), 0);
    const int64_t first = num_whole * kTileRows;
    std::memcpy(filled.data(), rows + first * p.inputs,
                size_t((num_rows - first) * p.inputs) * sizeof(bf16));
  }
  const bf16* last = filled.data();  // the vector is this thread's own
#pragma omp parallel num_threads(num_threads)
  {
    configure_tiles();
    alignas(64) float sums[2 * kTileRows * kBlock];
#pragma omp for collapse(2) schedule(static) nowait
    for (int64_t c = 0; c < num_chunks; ++c) {
      for (int64_t b = 0; b < num_blocks; ++b) {
        const bf16* weight = p.weight + b * p.inputs * kBlock;
        const int64_t end = std::min(num_tiles, (c + 1) * kTileChunk);
        const auto tile = [&](int64_t t) {
          return t < num_whole ? rows + t * kTileRows * p.inputs : last;
        };
        for (int64_t t = c * kTileChunk; t < end; t += 2) {
          if (t + 1 < end)
            multiply_tiles<true>(tile(t), tile(t + 1), p.inputs, weight, sums);
          else
            multiply_tiles<false>(tile(t), nullptr, p.inputs, weight, sums);
          const int64_t first = t * kTileRows;
          const int64_t count = std::min(num_rows, std::min(t + 2, end) * kTileRows) - first;
          for (int64_t r = 0; r < count; ++r) finish(b, first + r, sums + r * kBlock);
        }
      }
    }
    _tile_release();
  }
}

#endif

}  // namespace
