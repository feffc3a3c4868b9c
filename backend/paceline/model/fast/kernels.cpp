// What torch has no CPU kernel for, in bfloat16 with float32 arithmetic: attention over paged K/V
// that reads each key and value once, in place, and the small row operations of a decoder layer,
// each as one pass. Plain C interface, no headers of torch, so that it builds in two seconds.
//
// Work is cut at fixed positions (kChunk keys), never by the number of threads or by what else is
// in the batch: a token's result does not depend on its company, nor on whether it was decoded
// alone or verified behind others.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

using bf16 = uint16_t;
typedef float Floats __attribute__((vector_size(64)));
typedef int32_t Ints __attribute__((vector_size(64)));
typedef uint32_t Bits __attribute__((vector_size(64)));
typedef uint16_t Halves __attribute__((vector_size(32)));
typedef float Floats8 __attribute__((vector_size(32)));
typedef float Floats4 __attribute__((vector_size(16)));

constexpr int kLanes = 16;
constexpr int kChunk = 256;  // keys whose scores are held at once
constexpr int kTile = 16;    // queries computed together
constexpr int kRows = 4;     // query rows that share a converted key or value

inline float to_float(bf16 value) {
  uint32_t bits = uint32_t(value) << 16;
  float result;
  std::memcpy(&result, &bits, 4);
  return result;
}

inline bf16 to_bf16(float value) {  // to nearest, ties to even; NaN stays NaN
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return bf16((bits >> 16) | 0x40);
  return bf16((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

inline Floats load(const bf16* source) {
  Halves halves;
  std::memcpy(&halves, source, sizeof halves);
  Bits bits = __builtin_convertvector(halves, Bits) << 16;
  Floats result;
  std::memcpy(&result, &bits, sizeof result);
  return result;
}

inline Floats load(const float* source) {
  Floats result;
  std::memcpy(&result, source, sizeof result);
  return result;
}

inline void store(float* target, Floats value) { std::memcpy(target, &value, sizeof value); }

inline void store(bf16* target, Floats value) {
  Bits bits;
  std::memcpy(&bits, &value, sizeof bits);
  Bits is_nan = (Bits)((bits & 0x7fffffffu) > 0x7f800000u);
  Bits rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  Bits kept = (bits >> 16) | 0x40;
  Halves halves = __builtin_convertvector((rounded & ~is_nan) | (kept & is_nan), Halves);
  std::memcpy(target, &halves, sizeof halves);
}

inline float sum(Floats value) {
  Floats8 a, b;
  std::memcpy(&a, &value, 32);
  std::memcpy(&b, reinterpret_cast<char*>(&value) + 32, 32);
  a += b;
  Floats4 c, d;
  std::memcpy(&c, &a, 16);
  std::memcpy(&d, reinterpret_cast<char*>(&a) + 16, 16);
  c += d;
  return (c[0] + c[2]) + (c[1] + c[3]);
}

// exp to about two units in the last place; below -87 a tiny number, NaN for NaN.
inline Floats exponential(Floats x) {
  x = x < -87.0f ? Floats{} - 87.0f : x;
  x = x > 88.0f ? Floats{} + 88.0f : x;
  Floats shifted = x * 1.44269504f + 12582912.0f;  // rounds to a whole number
  Floats whole = shifted - 12582912.0f;
  Floats rest = x - whole * 0.693359375f + whole * 2.12194440e-4f;
  Floats power = Floats{} + 1.9875691500e-4f;
  power = power * rest + 1.3981999507e-3f;
  power = power * rest + 8.3334519073e-3f;
  power = power * rest + 4.1665795894e-2f;
  power = power * rest + 1.6666665459e-1f;
  power = power * rest + 5.0000001201e-1f;
  power = power * rest * rest + rest + 1.0f;
  Ints exponent = (__builtin_convertvector(whole, Ints) + 127) << 23;
  Floats scale;
  std::memcpy(&scale, &exponent, sizeof scale);
  return power * scale;
}

// One value, the same way, so that tails and whole vectors agree.
inline float exponential(float x) { return exponential(Floats{} + x)[0]; }

float square_sum(const bf16* row, int64_t width) {
  Floats total{};
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) {
    Floats x = load(row + i);
    total += x * x;
  }
  float result = sum(total);
  for (; i < width; ++i) result += to_float(row[i]) * to_float(row[i]);
  return result;
}

void scale_row(const bf16* row, const float* weight, float scale, int64_t width, bf16* out) {
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) store(out + i, load(row + i) * scale * load(weight + i));
  for (; i < width; ++i) out[i] = to_bf16(to_float(row[i]) * scale * weight[i]);
}

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
  float top = scores[low];
  for (int64_t i = low + 1; i < high; ++i) top = scores[i] > top ? scores[i] : top;
  Floats sums{};
  int64_t i = low;
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
  const int64_t end = std::min(tile.end, begin + kChunk);
  for (int64_t r = 0; r < rows; ++r) {
    const bf16* source = a.query + (tile.row + r / share) * a.query_stride +
                         (head * share + r % share) * a.width;
    for (int64_t i = 0; i < a.width; i += kLanes)
      store(query + r * a.width + i, load(source + i) * a.scale);
  }
  int64_t offsets[kChunk];
  const int64_t count = end - begin;
  for (int64_t j = 0; j < count; ++j) {
    const int64_t position = begin + j;
    offsets[j] = tile.table[position >> a.block_shift] * a.block_stride +
                 (position & (a.block_size - 1)) * a.token_stride + head * a.head_stride;
  }
  const int64_t padded = (count + 3) / 4 * 4;
  for (int64_t j = count; j < padded; ++j) offsets[j] = offsets[count - 1];
  for (int64_t r = 0; r < rows; r += kRows) {
    const float* part = query + r * a.width;
    float* row = scores + r * kChunk;
    switch (std::min<int64_t>(kRows, rows - r)) {
      case 1: score_rows<1>(a.keys, offsets, padded, a.width, part, row); break;
      case 2: score_rows<2>(a.keys, offsets, padded, a.width, part, row); break;
      case 3: score_rows<3>(a.keys, offsets, padded, a.width, part, row); break;
      default: score_rows<4>(a.keys, offsets, padded, a.width, part, row);
    }
  }
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t position = tile.first + r / share;
    const int64_t low = a.window > 0 ? position - a.window + 1 - begin : 0;
    soften(scores + r * kChunk, count, low, position + 1 - begin, largest + r, total + r);
  }
  for (int64_t r = 0; r < rows; r += kRows) {
    const float* row = scores + r * kChunk;
    float* part = out + r * a.width;
    switch (std::min<int64_t>(kRows, rows - r)) {
      case 1: weigh_rows<1>(a.values, offsets, count, a.width, row, part); break;
      case 2: weigh_rows<2>(a.values, offsets, count, a.width, row, part); break;
      case 3: weigh_rows<3>(a.values, offsets, count, a.width, row, part); break;
      default: weigh_rows<4>(a.values, offsets, count, a.width, row, part);
    }
  }
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

}  // namespace

extern "C" {

// out = norm(rows) * weight, or with `added`: total = rows + added, rounded, then out of total.
void paceline_norm(const bf16* rows, const bf16* added, bf16* total, const float* weight,
                   float epsilon, int64_t num_rows, int64_t width, bf16* out, int num_threads) {
#pragma omp parallel for num_threads(num_threads) if (num_rows >= 32)
  for (int64_t t = 0; t < num_rows; ++t) {
    const bf16* row = rows + t * width;
    if (added != nullptr) {
      bf16* joined = total + t * width;
      int64_t i = 0;
      for (; i + kLanes <= width; i += kLanes)
        store(joined + i, load(row + i) + load(added + t * width + i));
      for (; i < width; ++i) joined[i] = to_bf16(to_float(row[i]) + to_float(added[t * width + i]));
      row = joined;
    }
    float scale = 1.0f / std::sqrt(square_sum(row, width) / float(width) + epsilon);
    scale_row(row, weight, scale, width, out + t * width);
  }
}

// Norm (if weight is given, [num_heads, width]) and rotary embedding of each head, in place.
// cos, sin: [num_rows, width].
void paceline_rotate(bf16* heads, int64_t row_stride, const bf16* cos, const bf16* sin,
                     const float* weight, float epsilon, int64_t num_rows, int64_t num_heads,
                     int64_t width, int num_threads) {
  const int64_t half = width / 2;
#pragma omp parallel for num_threads(num_threads) if (num_rows >= 32)
  for (int64_t t = 0; t < num_rows; ++t) {
    const bf16 *c = cos + t * width, *s = sin + t * width;
    for (int64_t h = 0; h < num_heads; ++h) {
      bf16* head = heads + t * row_stride + h * width;
      if (weight != nullptr) {
        float scale = 1.0f / std::sqrt(square_sum(head, width) / float(width) + epsilon);
        scale_row(head, weight + h * width, scale, width, head);
      }
      for (int64_t i = 0; i < half; i += kLanes) {
        Floats left = load(head + i), right = load(head + half + i);
        store(head + i, left * load(c + i) - right * load(s + i));
        store(head + half + i, right * load(c + half + i) + left * load(s + half + i));
      }
    }
  }
}

// out = silu(gate) * up; gate_up: [num_rows, 2 * width].
void paceline_silu_mul(const bf16* gate_up, int64_t num_rows, int64_t width, bf16* out,
                       int num_threads) {
#pragma omp parallel for num_threads(num_threads) if (num_rows >= 4)
  for (int64_t t = 0; t < num_rows; ++t) {
    const bf16 *gate = gate_up + t * 2 * width, *up = gate + width;
    int64_t i = 0;
    for (; i + kLanes <= width; i += kLanes) {
      Floats x = load(gate + i);
      store(out + t * width + i, x / (exponential(-x) + 1.0f) * load(up + i));
    }
    for (; i < width; ++i) {
      float x = to_float(gate[i]);
      out[t * width + i] = to_bf16(x / (exponential(-x) + 1.0f) * to_float(up[i]));
    }
  }
}

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

// Writes this step's keys and values into their slots, then attends. query, key, value: rows of
// `stride` elements, heads side by side in each; out: [num_rows, num_heads, width].
void paceline_attend(const Batch* batch, const Memory* memory, const bf16* query, const bf16* key,
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

}  // extern "C"
