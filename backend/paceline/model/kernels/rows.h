// Operations on single rows: look-ups, norms, rotary embedding, gates. One pass each.
#pragma once

#include "vectors.h"

namespace {

// out[i] = table[places[i]], or with `added` that plus added[i]; a negative place stands for zeros.
void pick_rows(const bf16* table, const int64_t* places, const bf16* added, int64_t num_rows,
               int64_t width, bf16* out) {
  for (int64_t r = 0; r < num_rows; ++r) {
    bf16* target = out + r * width;
    if (places[r] < 0)
      std::memset(target, 0, size_t(width) * sizeof(bf16));
    else
      std::memcpy(target, table + places[r] * width, size_t(width) * sizeof(bf16));
    if (added == nullptr) continue;
    const bf16* more = added + r * width;
    int64_t i = 0;
    for (; i + kLanes <= width; i += kLanes) store(target + i, load(target + i) + load(more + i));
    for (; i < width; ++i) target[i] = to_bf16(to_float(target[i]) + to_float(more[i]));
  }
}

// table[places[i]] = rows[sources[i]].
void put_rows(bf16* table, const int64_t* places, const bf16* rows, const int64_t* sources,
              int64_t num_rows, int64_t width) {
  for (int64_t r = 0; r < num_rows; ++r)
    std::memcpy(table + places[r] * width, rows + sources[r] * width, size_t(width) * sizeof(bf16));
}

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

// out = norm(rows) * weight, or with `added`: total = rows + added, rounded, then out of total.
void norm_rows(const bf16* rows, const bf16* added, bf16* total, const float* weight,
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
void rotate_heads(bf16* heads, int64_t row_stride, const bf16* cos, const bf16* sin,
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
void silu_mul(const bf16* gate_up, int64_t num_rows, int64_t width, bf16* out,
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

}  // namespace
