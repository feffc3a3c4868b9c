// Attention over paged K/V: each key and value is read once, where it lies.
#pragma once

#include "pairs.h"

namespace {

constexpr int kChunk = 256;  // keys whose scores are held at once
constexpr int kTile = 16;    // queries computed together
constexpr int kRows = 6;     // query rows that share a loaded key or value: what registers hold

struct Batch {
  int64_t num_rows, num_segments, table_width, block_size;
  const int64_t* slots;            // [num_rows]
  const int32_t* query_lengths;    // [num_segments]
  const int32_t* context_lengths;  // [num_segments], this step's rows included
  const int32_t* tables;           // [num_segments, table_width]
};

struct Memory {
  bf16 *keys, *values;
  int64_t block_stride, token_stride, head_stride;  // in elements
  int64_t num_kv_heads, width;
};

struct Attention {
  const bf16* query;
  int64_t query_stride;
  const bf16* keys;
  const bf16* values;
  int64_t block_stride, token_stride, head_stride;
  int64_t num_heads, num_kv_heads, width, block_size, block_shift;
  float scale;
  int64_t window;
  bf16* out;
};

// Up to kTile queries of one segment; `first` is the position of the first of them.
struct Tile {
  int64_t row, num_queries, first, begin, end;  // keys [begin, end), begin a multiple of kChunk
  const int32_t* table;
  int64_t partial;  // index of its first partial result; -1 when one chunk is all
  int64_t num_chunks() const { return (end - begin + kChunk - 1) / kChunk; }
};

// Calls `call` with `count`, 1 to R, as a constant.
template <int R, typename Call>
void with_rows(int64_t count, const Call& call) {
  if constexpr (R > 1) {
    if (count < R) return with_rows<R - 1>(count, call);
  }
  call(std::integral_constant<int, R>{});
}

// Sums of four vectors, in few shuffles.
inline Floats4 sum4(Floats a, Floats b, Floats c, Floats d) {
  Floats ab = __builtin_shufflevector(a, b, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13,
                                      29) +
              __builtin_shufflevector(a, b, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15,
                                      31);
  Floats cd = __builtin_shufflevector(c, d, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13,
                                      29) +
              __builtin_shufflevector(c, d, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15,
                                      31);
  Floats all = __builtin_shufflevector(ab, cd, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28,
                                       29) +
               __builtin_shufflevector(ab, cd, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15,
                                       30, 31);
  Floats8 low = __builtin_shufflevector(all, all, 0, 1, 2, 3, 4, 5, 6, 7);
  Floats8 high = __builtin_shufflevector(all, all, 8, 9, 10, 11, 12, 13, 14, 15);
  low += high;
  return __builtin_shufflevector(low, low, 0, 1, 2, 3) +
         __builtin_shufflevector(low, low, 4, 5, 6, 7);
}

// Scores of `R` query rows against `count` keys, a multiple of four, at the given offsets.
template <int R>
void score_rows(const bf16* keys, const int64_t* offsets, int64_t count, int64_t width,
                const float* query, float* scores) {
  for (int64_t j = 0; j < count; j += 4) {
    const bf16 *key0 = keys + offsets[j], *key1 = keys + offsets[j + 1],
               *key2 = keys + offsets[j + 2], *key3 = keys + offsets[j + 3];
    Floats total[R][4] = {};
    for (int64_t i = 0; i < width; i += kLanes) {
      Floats part[4] = {load(key0 + i), load(key1 + i), load(key2 + i), load(key3 + i)};
      for (int r = 0; r < R; ++r) {
        Floats x = load(query + r * width + i);
        for (int k = 0; k < 4; ++k) total[r][k] += part[k] * x;
      }
    }
    for (int r = 0; r < R; ++r) {
      Floats4 sums = sum4(total[r][0], total[r][1], total[r][2], total[r][3]);
      std::memcpy(scores + r * kChunk + j, &sums, sizeof sums);
    }
  }
}

// Values weighted by `R` rows of weights and summed, `C` vectors of columns at a time.
template <int R, int C>
void weigh_columns(const bf16* values, const int64_t* offsets, int64_t count, int64_t width,
                   const float* weights, float* out) {
  Floats total[R][C] = {};
  for (int64_t j = 0; j < count; ++j) {
    const bf16* value = values + offsets[j];
    Floats part[C];
    for (int c = 0; c < C; ++c) part[c] = load(value + c * kLanes);
    for (int r = 0; r < R; ++r) {
      float weight = weights[r * kChunk + j];
      for (int c = 0; c < C; ++c) total[r][c] += part[c] * weight;
    }
  }
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < C; ++c) store(out + r * width + c * kLanes, total[r][c]);
}

template <int R>
void weigh_rows(const bf16* values, const int64_t* offsets, int64_t count, int64_t width,
                const float* weights, float* out) {
  int64_t column = 0;
  for (; column + 4 * kLanes <= width; column += 4 * kLanes)
    weigh_columns<R, 4>(values + column, offsets, count, width, weights, out + column);
  for (; column < width; column += 2 * kLanes)
    weigh_columns<R, 2>(values + column, offsets, count, width, weights, out + column);
}

// Turns scores into weights in place; returns largest score and sum of weights. Keys outside
// [low, high) of the chunk get no weight.
void soften(float* scores, int64_t count, int64_t low, int64_t high, float* largest, float* total) {
  low = std::max<int64_t>(low, 0);
  high = std::min(high, count);
  if (low >= high) {
    std::fill(scores, scores + count, 0.0f);
    *largest = -INFINITY;
    *total = 0.0f;
    return;
  }
  Floats tops = Floats{} - INFINITY;
  int64_t i = low;
  for (; i + kLanes <= high; i += kLanes) {
    const Floats some = load(scores + i);
    tops = some > tops ? some : tops;
  }
  float top = largest_of(tops);
  for (; i < high; ++i) top = scores[i] > top ? scores[i] : top;
  Floats sums{};
  i = low;
  for (; i + kLanes <= high; i += kLanes) {
    Floats weight = exponential(load(scores + i) - top);
    store(scores + i, weight);
    sums += weight;
  }
  float rest = 0.0f;
  for (; i < high; ++i) rest += scores[i] = exponential(scores[i] - top);
  std::fill(scores, scores + low, 0.0f);
  std::fill(scores + high, scores + count, 0.0f);
  *largest = top;
  *total = sum(sums) + rest;
}

// One chunk of keys for all query rows of a tile that share a K/V head. out: [rows, width], not
// normalised; largest, total: [rows].
void attend_chunk(const Attention& a, const Tile& tile, int64_t head, int64_t chunk, float* query,
                  float* scores, float* out, float* largest, float* total) {
  const int64_t share = a.num_heads / a.num_kv_heads, rows = tile.num_queries * share;
  const int64_t begin = tile.begin + chunk * kChunk;
  const int64_t count = std::min(tile.end, begin + kChunk) - begin;
  const bool in_pairs = serves_pairs(a.width);
  const auto source = [&](int64_t r) {
    return a.query + (tile.row + r / share) * a.query_stride + (head * share + r % share) * a.width;
  };
  int64_t offsets[kChunk];
  for (int64_t j = 0; j < count; ++j) {
    const int64_t position = begin + j;
    offsets[j] = tile.table[position >> a.block_shift] * a.block_stride +
                 (position & (a.block_size - 1)) * a.token_stride + head * a.head_stride;
  }
  // Keys come in groups; the last one is filled up, and what fills it gets no weight.
  const int64_t group = in_pairs ? 2 * kLanes : 4, padded = (count + group - 1) / group * group;
  for (int64_t j = count; j < padded; ++j) offsets[j] = offsets[count - 1];
  const auto each_group = [&](const auto& call) {
    for (int64_t r = 0; r < rows; r += kRows)
      with_rows<kRows>(std::min<int64_t>(kRows, rows - r), [&](auto n) { call(r, n); });
  };
  const auto weights_of = [&] {
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t position = tile.first + r / share;
      const int64_t low = a.window > 0 ? position - a.window + 1 - begin : 0;
      soften(scores + r * kChunk, padded, low, position + 1 - begin, largest + r, total + r);
    }
  };
#if PACELINE_HAS_PRODUCTS
  if (in_pairs) {
    __m512i pairs[kMaxWidth];
    for (int64_t j = 0; j < padded; j += kKeys) {
      lay_keys(a.keys, offsets + j, a.width, pairs);
      each_group([&](int64_t r, auto n) {
        const bf16* some[n()];
        for (int i = 0; i < n(); ++i) some[i] = source(r + i);
        score_pairs<n()>(pairs, a.width, some, a.scale, scores + r * kChunk + j, kChunk);
      });
    }
    weights_of();
    for (int64_t r = 0; r < rows; ++r) round_weights(scores + r * kChunk, padded);
    const int64_t even = (count + 1) / 2 * 2;
    each_group([&](int64_t r, auto n) {
      const bf16* weights = reinterpret_cast<const bf16*>(scores + r * kChunk);
      float* target = out + r * a.width;
      int64_t column = 0;
      for (; column + 64 <= a.width; column += 64)
        weigh_pairs<n(), 2>(a.values + column, offsets, even, weights, 2 * kChunk,
                            target + column, a.width);
      for (; column < a.width; column += 32)
        weigh_pairs<n(), 1>(a.values + column, offsets, even, weights, 2 * kChunk,
                            target + column, a.width);
    });
    return;
  }
#endif
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t i = 0; i < a.width; i += kLanes)
      store(query + r * a.width + i, load(source(r) + i) * a.scale);
  each_group([&](int64_t r, auto n) {
    score_rows<n()>(a.keys, offsets, padded, a.width, query + r * a.width, scores + r * kChunk);
  });
  weights_of();
  each_group([&](int64_t r, auto n) {
    weigh_rows<n()>(a.values, offsets, count, a.width, scores + r * kChunk, out + r * a.width);
  });
}

// Joins a row's chunks: out = sum of e^(largest - top) * part, over the same sum of totals.
void join(const float* parts, const float* largest, const float* totals, int64_t num_chunks,
          int64_t part_stride, int64_t row_stride, int64_t width, bf16* out) {
  float top = -INFINITY;
  for (int64_t c = 0; c < num_chunks; ++c) {
    float value = largest[c * row_stride];
    top = value > top ? value : top;
  }
  float factors[1 << 10];
  for (int64_t first = 0; first < width; first += kLanes) {
    Floats sums{};
    float total = 0.0f;
    for (int64_t c = 0; c < num_chunks; ++c) {
      float& factor = factors[c & 1023];
      if (first == 0 || num_chunks > 1024)
        factor = totals[c * row_stride] == 0.0f ? 0.0f
                                                : exponential(largest[c * row_stride] - top);
      sums += load(parts + c * part_stride + first) * factor;
      total += totals[c * row_stride] * factor;
    }
    store(out + first, sums / total);
  }
}

// Writes this step's keys and values into their slots, then attends. query, key, value: rows of
// `stride` elements, heads side by side in each; out: [num_rows, num_heads, width].
void attend(const Batch* batch, const Memory* memory, const bf16* query, const bf16* key,
                     const bf16* value, int64_t query_stride, int64_t key_stride,
                     int64_t value_stride, int64_t num_heads, float scale, int64_t window,
                     bf16* out, int num_threads) {
  const Memory& m = *memory;
  const int64_t size = batch->block_size;
  const size_t row_bytes = size_t(m.width) * sizeof(bf16);
#pragma omp parallel for num_threads(num_threads) if (batch->num_rows >= 64)
  for (int64_t t = 0; t < batch->num_rows; ++t) {
    const int64_t slot = batch->slots[t];
    const int64_t at = slot / size * m.block_stride + slot % size * m.token_stride;
    for (int64_t h = 0; h < m.num_kv_heads; ++h) {
      std::memcpy(m.keys + at + h * m.head_stride, key + t * key_stride + h * m.width, row_bytes);
      std::memcpy(m.values + at + h * m.head_stride, value + t * value_stride + h * m.width,
                  row_bytes);
    }
  }
  int64_t shift = 0;  // block sizes are powers of two
  while ((int64_t(1) << shift) < size) ++shift;
  const Attention a{query,          query_stride,  m.keys,    m.values,       m.block_stride,
                    m.token_stride, m.head_stride, num_heads, m.num_kv_heads, m.width,
                    size,           shift,         scale,     window,         out};
  const int64_t share = num_heads / m.num_kv_heads;
  static thread_local std::vector<Tile> tiles;
  static thread_local std::vector<int64_t> tasks;  // tile * num_kv_heads + head, chunk: pairs
  static thread_local std::vector<float> partials;
  tiles.clear();
  tasks.clear();
  int64_t row = 0, num_partials = 0, work = 0;
  for (int64_t s = 0; s < batch->num_segments; ++s) {
    const int64_t length = batch->query_lengths[s], context = batch->context_lengths[s];
    for (int64_t done = 0; done < length; done += kTile) {
      Tile tile{};
      tile.row = row + done;
      tile.num_queries = std::min<int64_t>(kTile, length - done);
      tile.first = context - length + done;
      tile.end = tile.first + tile.num_queries;
      tile.begin = window > 0 ? std::max<int64_t>(0, tile.first - window + 1) / kChunk * kChunk : 0;
      tile.table = batch->tables + s * batch->table_width;
      tile.partial = tile.num_chunks() > 1 ? num_partials : -1;
      if (tile.partial >= 0) num_partials += tile.num_chunks() * m.num_kv_heads;
      for (int64_t h = 0; h < m.num_kv_heads; ++h)
        for (int64_t c = 0; c < tile.num_chunks(); ++c) {
          tasks.push_back(int64_t(tiles.size()) * m.num_kv_heads + h);
          tasks.push_back(c);
        }
      work += (tile.end - tile.begin) * tile.num_queries * num_heads;
      tiles.push_back(tile);
    }
    row += length;
  }
  const int64_t max_rows = kTile * share;
  const int64_t part_size = max_rows * (m.width + 2);  // values, then largest, then totals
  if (int64_t(partials.size()) < num_partials * part_size) partials.resize(num_partials * part_size);
  const int64_t* task = tasks.data();
  const Tile* all_tiles = tiles.data();
  float* all_partials = partials.data();
  // The vectors are each thread's own: workers get at this thread's through these.
  const int64_t num_tasks = int64_t(tasks.size()) / 2;
  const int64_t num_joins = int64_t(tiles.size()) * m.num_kv_heads;
#pragma omp parallel num_threads(num_threads) if (work >= 1024)
  {
    static thread_local std::vector<float> scratch;
    scratch.resize(max_rows * (2 * m.width + kChunk + 2));
    float* rows_query = scratch.data();
    float* rows_out = rows_query + max_rows * m.width;
    float* rows_scores = rows_out + max_rows * m.width;
    float* rows_largest = rows_scores + max_rows * kChunk;
    float* rows_total = rows_largest + max_rows;
#pragma omp for schedule(dynamic, 1)
    for (int64_t i = 0; i < num_tasks; ++i) {
      const Tile& tile = all_tiles[task[2 * i] / m.num_kv_heads];
      const int64_t head = task[2 * i] % m.num_kv_heads, chunk = task[2 * i + 1];
      if (tile.partial >= 0) {
        float* part =
            all_partials + (tile.partial + head * tile.num_chunks() + chunk) * part_size;
        attend_chunk(a, tile, head, chunk, rows_query, rows_scores, part, part + max_rows * m.width,
                     part + max_rows * (m.width + 1));
        continue;
      }
      attend_chunk(a, tile, head, chunk, rows_query, rows_scores, rows_out, rows_largest,
                   rows_total);
      for (int64_t r = 0; r < tile.num_queries * share; ++r)
        join(rows_out + r * m.width, rows_largest + r, rows_total + r, 1, 0, 0, m.width,
             out + ((tile.row + r / share) * num_heads + head * share + r % share) * m.width);
    }
    if (num_partials > 0) {
#pragma omp for schedule(static)
      for (int64_t i = 0; i < num_joins; ++i) {
        const Tile& tile = all_tiles[i / m.num_kv_heads];
        if (tile.partial < 0) continue;
        const int64_t head = i % m.num_kv_heads;
        const float* part = all_partials + (tile.partial + head * tile.num_chunks()) * part_size;
        for (int64_t r = 0; r < tile.num_queries * share; ++r)
          join(part + r * m.width, part + max_rows * m.width + r,
               part + max_rows * (m.width + 1) + r, tile.num_chunks(), part_size, part_size,
               m.width,
               out + ((tile.row + r / share) * num_heads + head * share + r % share) * m.width);
      }
    }
  }
}

}  // namespace
