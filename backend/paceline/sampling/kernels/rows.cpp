// Passes over whole rows of logits, each reading its inputs once: what takes several passes with
// torch's operations. Rows are independent, so a row's result does not depend on its company or on
// the number of threads.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <vector>

namespace {

constexpr int64_t kGroup = 256;
constexpr int64_t kBlock = 32;

// exp(x) for x <= 0 with a relative error of about 1e-7 (range reduction by ln 2, then a polynomial
// of degree 6); 0 where that is below the smallest normal number.
inline float exp_of_negative(float x) {
  const float whole = std::nearbyint(x * 1.44269504f);
  const float rest = (x - whole * 0.693359375f) + whole * 2.12194440e-4f;
  float value = 1.9875691500e-4f;
  value = value * rest + 1.3981999507e-3f;
  value = value * rest + 8.3334519073e-3f;
  value = value * rest + 4.1665795894e-2f;
  value = value * rest + 1.6666665459e-1f;
  value = value * rest + 5.0000001201e-1f;
  value = value * rest * rest + rest + 1.0f;
  const int32_t bits = (static_cast<int32_t>(whole) + 127) << 23;
  float scale;
  std::memcpy(&scale, &bits, sizeof scale);
  return value * scale;
}

inline float weight_of(float logit, float peak, float inverse) {
  const float x = (logit - peak) * inverse;
  // The clamp keeps the arithmetic above in range; what it changes is replaced by 0.
  const float clamped = x < -87.0f ? -87.0f : x;
  const float weight = exp_of_negative(clamped);
  return x < -87.0f ? 0.0f : weight;
}

inline float widen(uint16_t bits) {
  const uint32_t whole = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &whole, sizeof value);
  return value;
}

inline float widen(float value) { return value; }

// Weights of one row into `weights`, or nowhere with a null pointer; returns their sum.
template <typename T>
double weigh_row(const T* logits, int64_t width, float peak, float inverse, float* weights) {
  float scratch[kGroup];
  double total = 0;
  for (int64_t start = 0; start < width; start += kGroup) {
    const int64_t count = width - start < kGroup ? width - start : kGroup;
    float* to = weights == nullptr ? scratch : weights + start;
    for (int64_t i = 0; i < count; ++i) to[i] = weight_of(widen(logits[start + i]), peak, inverse);
    // Sixteen partial sums, so that the order of additions is fixed and vectors fit.
    float sums[16] = {};
    int64_t i = 0;
    for (; i + 16 <= count; i += 16)
      for (int64_t lane = 0; lane < 16; ++lane) sums[lane] += to[i + lane];
    float sum = 0;
    for (; i < count; ++i) sum += to[i];
    for (float partial : sums) sum += partial;
    total += sum;
  }
  return total;
}

// Seven bits of fraction and the exponent: neighbouring weights share a bin, in falling order.
constexpr int kBinShift = 16;
constexpr int64_t kNumBins = (0x3f800000 >> kBinShift) + 1;

inline int64_t bin_of(float weight) {
  uint32_t bits;
  std::memcpy(&bits, &weight, sizeof bits);
  return bits >> kBinShift;
}

// The highest weight such that those that are at least as high sum up to `needed`; `lowest` where
// rounding hides it.
float nucleus_cut(const float* weights, int64_t count, double needed, float lowest,
                  std::vector<double>& bins, std::vector<float>& inside) {
  std::fill(bins.begin(), bins.end(), 0.0);
  for (int64_t i = 0; i < count; ++i) bins[bin_of(weights[i])] += weights[i];
  double reached = 0;
  int64_t bin = kNumBins - 1;
  while (bin > 0 && reached + bins[bin] < needed) reached += bins[bin--];
  inside.clear();
  for (int64_t i = 0; i < count; ++i)
    if (bin_of(weights[i]) == bin) inside.push_back(weights[i]);
  std::sort(inside.begin(), inside.end(), std::greater<float>());
  for (float weight : inside) {
    reached += weight;
    if (reached >= needed) return weight;
  }
  return lowest;
}

template <typename T>
void keep_likely(const T* logits, int64_t stride, int64_t num_rows, int64_t width,
                 const float* peaks, const float* inverses, const double* top_p,
                 const float* min_p, float* kept, int32_t* ids, int64_t* counts,
                 int num_threads) {
#pragma omp parallel num_threads(num_threads)
  {
    std::vector<float> weights(width), inside;
    std::vector<double> bins(kNumBins);
#pragma omp for schedule(dynamic)
    for (int64_t row = 0; row < num_rows; ++row) {
      const double total =
          weigh_row(logits + row * stride, width, peaks[row], inverses[row], weights.data());
      // All entries below the bound together are less than what top-p leaves out.
      const double spare = (1 - top_p[row]) * total / width * (1 - 1e-5);
      const float bound = std::max(min_p[row], static_cast<float>(spare));
      float* to = kept + row * width;
      int32_t* names = ids + row * width;
      int64_t count = 0;
      for (int64_t start = 0; start < width; start += kBlock) {
        const int64_t end = std::min(start + kBlock, width);
        // Most blocks hold nothing likely, and a vector comparison tells.
        int hits = 0;
        for (int64_t i = start; i < end; ++i) hits += weights[i] >= bound;
        if (hits == 0) continue;
        for (int64_t i = start; i < end; ++i) {
          to[count] = weights[i];
          names[count] = static_cast<int32_t>(i);
          count += weights[i] >= bound && weights[i] > 0;
        }
      }
      if (top_p[row] < 1) {
        const float cut = nucleus_cut(to, count, top_p[row] * total, bound, bins, inside);
        int64_t left = 0;
        for (int64_t i = 0; i < count; ++i) {
          to[left] = to[i];
          names[left] = names[i];
          left += to[i] >= cut;
        }
        count = left;
      }
      counts[row] = count;
    }
  }
}

template <typename T>
void weigh(const T* logits, int64_t stride, int64_t num_rows, int64_t width, const float* peaks,
           const float* inverses, float* weights, double* totals, int num_threads) {
#pragma omp parallel for num_threads(num_threads) schedule(static)
  for (int64_t row = 0; row < num_rows; ++row) {
    totals[row] = weigh_row(logits + row * stride, width, peaks[row], inverses[row],
                            weights == nullptr ? nullptr : weights + row * width);
  }
}

// Philox4x32-10 with one counter; see randomness.py.
struct Words {
  uint32_t word[4];
};

Words philox(uint64_t seed, uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3) {
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t product_0 = uint64_t{0xD2511F53} * c0;
    const uint64_t product_1 = uint64_t{0xCD9E8D57} * c2;
    c0 = static_cast<uint32_t>(product_1 >> 32) ^ c1 ^ k0;
    c1 = static_cast<uint32_t>(product_1);
    c2 = static_cast<uint32_t>(product_0 >> 32) ^ c3 ^ k1;
    c3 = static_cast<uint32_t>(product_0);
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return {{c0, c1, c2, c3}};
}

}  // namespace

extern "C" {

// Uniforms in [0, 1) with 53 random bits, one for each key and counter.
void paceline_uniforms(const uint64_t* seeds, const uint64_t* positions, const uint64_t* rounds,
                       const uint64_t* purposes, int64_t count, double* out) {
  for (int64_t i = 0; i < count; ++i) {
    const Words words = philox(seeds[i], static_cast<uint32_t>(positions[i]),
                               static_cast<uint32_t>(rounds[i]),
                               static_cast<uint32_t>(rounds[i] >> 32),
                               static_cast<uint32_t>(purposes[i]));
    const uint64_t bits = (uint64_t{words.word[0]} << 32 | words.word[1]) >> 11;
    out[i] = static_cast<double>(bits) * 0x1p-53;
  }
}

// exp((logit - peak) * inverse) of each entry and the sum of each row. weights may be null.
void paceline_weigh(const void* logits, int is_bfloat16, int64_t stride, int64_t num_rows,
                    int64_t width, const float* peaks, const float* inverses, float* weights,
                    double* totals, int num_threads) {
  if (is_bfloat16)
    weigh(static_cast<const uint16_t*>(logits), stride, num_rows, width, peaks, inverses, weights,
          totals, num_threads);
  else
    weigh(static_cast<const float*>(logits), stride, num_rows, width, peaks, inverses, weights,
          totals, num_threads);
}

// Entries that top-p and min-p leave of each row, in order of their ids: weights as above and ids,
// counts[row] of them at the start of each row of `kept` and `ids` [num_rows, width].
void paceline_keep_likely(const void* logits, int is_bfloat16, int64_t stride, int64_t num_rows,
                          int64_t width, const float* peaks, const float* inverses,
                          const double* top_p, const float* min_p, float* kept, int32_t* ids,
                          int64_t* counts, int num_threads) {
  if (is_bfloat16)
    keep_likely(static_cast<const uint16_t*>(logits), stride, num_rows, width, peaks, inverses,
                top_p, min_p, kept, ids, counts, num_threads);
  else
    keep_likely(static_cast<const float*>(logits), stride, num_rows, width, peaks, inverses, top_p,
                min_p, kept, ids, counts, num_threads);
}

// Sum over all entries of max(0, factor * weight - draft), for pairs of rows; beyond draft_width
// the draft is zero.
void paceline_excess(const float* weights, int64_t width, const int64_t* rows, const float* factors,
                     const float* drafts, int64_t draft_width, const int64_t* draft_rows,
                     int64_t num_pairs, double* out, int num_threads) {
#pragma omp parallel for num_threads(num_threads) schedule(static)
  for (int64_t pair = 0; pair < num_pairs; ++pair) {
    const float* target = weights + rows[pair] * width;
    const float* draft = drafts + draft_rows[pair] * draft_width;
    const float factor = factors[pair];
    double total = 0;
    for (int64_t start = 0; start < width; start += kGroup) {
      const int64_t end = width - start < kGroup ? width : start + kGroup;
      const int64_t shared = draft_width < end ? draft_width : end;
      float sums[16] = {};
      int64_t i = start;
      for (; i + 16 <= shared; i += 16)
        for (int64_t lane = 0; lane < 16; ++lane) {
          const float over = factor * target[i + lane] - draft[i + lane];
          sums[lane] += over > 0 ? over : 0.0f;
        }
      float sum = 0;
      for (; i < shared; ++i) {
        const float over = factor * target[i] - draft[i];
        sum += over > 0 ? over : 0.0f;
      }
      for (; i < end; ++i) sum += factor * target[i];
      for (float partial : sums) sum += partial;
      total += sum;
    }
    out[pair] = total;
  }
}

}  // extern "C"
