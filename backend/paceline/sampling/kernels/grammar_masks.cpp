// Rows of logits without the tokens that a grammar rules out, made in one pass over them: with
// torch's operations the bits are first unpacked to a byte for each token, and rows copied twice.

#include <cstdint>
#include <cstring>
#include <limits>

namespace {

constexpr float kImpossible = -std::numeric_limits<float>::infinity();

inline float widen(uint16_t bits) {
  const uint32_t whole = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &whole, sizeof value);
  return value;
}

inline float widen(float value) { return value; }

// Columns are tokens: whole words of bits first, so that vectors fit, then what is left of one.
template <typename T>
void mask_row(const T* logits, int64_t width, const uint32_t* bits, int64_t num_words, float* out) {
  const int64_t masked = num_words * 32 < width ? num_words * 32 : width;
  int64_t i = 0;
  for (; i + 32 <= masked; i += 32) {
    const uint32_t word = bits[i / 32];
    if (word == 0) {
      for (int64_t lane = 0; lane < 32; ++lane) out[i + lane] = kImpossible;
      continue;
    }
    for (int64_t lane = 0; lane < 32; ++lane) {
      const float value = widen(logits[i + lane]);
      out[i + lane] = (word >> lane) & 1u ? value : kImpossible;
    }
  }
  for (; i < masked; ++i)
    out[i] = (bits[i / 32] >> (i % 32)) & 1u ? widen(logits[i]) : kImpossible;
  for (; i < width; ++i) out[i] = kImpossible;
}

// Column c is token ids[c].
template <typename T>
void mask_named_row(const T* logits, int64_t width, const int64_t* ids, const uint32_t* bits,
                    int64_t num_words, float* out) {
  for (int64_t i = 0; i < width; ++i) {
    const int64_t id = ids[i];
    const bool is_allowed = id < num_words * 32 && ((bits[id / 32] >> (id % 32)) & 1u);
    out[i] = is_allowed ? widen(logits[i]) : kImpossible;
  }
}

template <typename T>
void mask_rows(const T* logits, int64_t stride, int64_t num_rows, int64_t width,
               const int64_t* ids, const int64_t* mask_of_row, const uint32_t* bits,
               int64_t num_words, float* out, int num_threads) {
#pragma omp parallel for num_threads(num_threads) schedule(static)
  for (int64_t row = 0; row < num_rows; ++row) {
    const T* from = logits + row * stride;
    float* to = out + row * width;
    const int64_t mask = mask_of_row[row];
    if (mask < 0) {
      for (int64_t i = 0; i < width; ++i) to[i] = widen(from[i]);
    } else if (ids == nullptr) {
      mask_row(from, width, bits + mask * num_words, num_words, to);
    } else {
      mask_named_row(from, width, ids, bits + mask * num_words, num_words, to);
    }
  }
}

}  // namespace

extern "C" {

// float32 copies of the rows. mask_of_row: which row of bits is a row's own, -1 for none. ids: the
// token of each column, null where column c is token c. Logits are float32 or bfloat16.
void paceline_mask_rows(const void* logits, int is_bfloat16, int64_t stride, int64_t num_rows,
                        int64_t width, const int64_t* ids, const int64_t* mask_of_row,
                        const uint32_t* bits, int64_t num_words, float* out, int num_threads) {
  if (is_bfloat16)
    mask_rows(static_cast<const uint16_t*>(logits), stride, num_rows, width, ids, mask_of_row, bits,
              num_words, out, num_threads);
  else
    mask_rows(static_cast<const float*>(logits), stride, num_rows, width, ids, mask_of_row, bits,
              num_words, out, num_threads);
}

}  // extern "C"
