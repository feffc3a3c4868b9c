// Passes over whole rows of logits, each reading its inputs once, and what verification makes of
// them: what takes several passes with torch's operations. Rows are independent, so a row's result
// does not depend on its company or on the number of threads.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <vector>

namespace {

constexpr int64_t kGroup = 256;
constexpr int64_t kBlock = 32;
// Entries from which on threads save more than waking them costs.
constexpr int64_t kWorthThreads = 1 << 17;

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

// The lowest index of the highest entry, and that entry; NaN if there is one in the row. Groups are
// compared first, so that vectors fit; of floats a compiler makes them only if it is told that the
// order of comparisons does not matter.
template <typename T>
int64_t highest_of(const T* logits, int64_t width, float* peak) {
  *peak = -INFINITY;
  int64_t at = 0;
  int32_t is_broken = 0;
  for (int64_t start = 0; start < width; start += kGroup) {
    const int64_t end = std::min(start + kGroup, width);
    float highest = -INFINITY;
#pragma omp simd reduction(max : highest) reduction(| : is_broken)
    for (int64_t i = start; i < end; ++i) {
      const float value = widen(logits[i]);
      highest = value > highest ? value : highest;
      is_broken |= value != value;
    }
    if (highest > *peak) {
      *peak = highest;
      at = start;
    }
  }
  if (is_broken) {
    *peak = NAN;
    return 0;
  }
  // A compiler may begin a maximum at the lowest finite number: of a row without any, none is it.
  for (; at < width; ++at)
    if (widen(logits[at]) == *peak) return at;
  *peak = -INFINITY;
  return 0;
}

template <typename T>
void highest(const T* logits, int64_t stride, int64_t num_rows, int64_t width, int64_t* places,
             float* peaks, int num_threads) {
#pragma omp parallel for num_threads(num_threads) if (num_rows * width >= kWorthThreads)
  for (int64_t row = 0; row < num_rows; ++row)
    places[row] = highest_of(logits + row * stride, width, peaks + row);
}

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
#pragma omp parallel num_threads(num_threads) if (num_rows * width >= kWorthThreads)
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
#pragma omp parallel for num_threads(num_threads) if (num_rows * width >= kWorthThreads)
  for (int64_t row = 0; row < num_rows; ++row) {
    totals[row] = weigh_row(logits + row * stride, width, peaks[row], inverses[row],
                            weights == nullptr ? nullptr : weights + row * width);
  }
}

// The first index whose cumulative weight exceeds uniform * total; never one of weight zero.
int64_t inverse_cdf(const float* weights, int64_t width, double uniform) {
  double total = 0;
  std::vector<double> sums((width + kGroup - 1) / kGroup);
  for (size_t group = 0; group < sums.size(); ++group) {
    const int64_t start = group * kGroup, end = std::min(start + kGroup, width);
    float partial[16] = {};
    int64_t i = start;
    for (; i + 16 <= end; i += 16)
      for (int64_t lane = 0; lane < 16; ++lane) partial[lane] += weights[i + lane];
    double sum = 0;
    for (; i < end; ++i) sum += weights[i];
    for (float each : partial) sum += each;
    sums[group] = sum;
    total += sum;
  }
  const double level = uniform * total;
  double reached = 0;
  int64_t group = 0;
  const int64_t last_group = static_cast<int64_t>(sums.size()) - 1;
  while (group < last_group && reached + sums[group] <= level) reached += sums[group++];
  // What rounding may have moved past a group's end is looked for in what follows.
  int64_t last = -1;
  for (int64_t i = group * kGroup; i < width; ++i) {
    if (!(weights[i] > 0)) continue;
    last = i;
    reached += weights[i];
    if (reached > level) return i;
  }
  for (int64_t i = group * kGroup; last < 0 && i > 0; --i)
    if (weights[i - 1] > 0) last = i - 1;
  return last < 0 ? 0 : last;
}

}  // namespace

extern "C" {

// A round of B sequences: what `acceptance.draw` computes from the law that `acceptance_law` makes.
// Shapes are those of `Drafted` and `Rows`; the outputs those of `Acceptance`.
struct PacelineRound {
  const float* weights;
  const int64_t* ids;  // null where entry c is token c
  const double* totals;
  int64_t width;
  const float* drafts;  // null where no draft has rows
  const int64_t* vocab_ids;  // null where column c is token c
  int64_t draft_width;
  const int64_t* draft_ids;
  const int64_t* num_drafted;
  const int64_t* first_rows;
  const int64_t* row_index;
  const uint8_t* is_block;
  const double* accept;
  const double* residual;
  const double* bonus;
  int64_t num_sequences;
  int64_t depth;
  int64_t* num_accepted;
  int64_t* next_token;
  int64_t* source;
  int64_t* num_examined;
  int64_t* num_passed;
  double* survival;
  double* next_prob;
};

}  // extern "C"

namespace {

double target_prob(const PacelineRound& round, int64_t row, int64_t token) {
  const float* weights = round.weights + row * round.width;
  float weight = 0;
  if (round.ids == nullptr) {
    weight = weights[token];
  } else {
    const int64_t* ids = round.ids + row * round.width;
    for (int64_t i = 0; i < round.width; ++i)
      if (ids[i] == token && weights[i] > weight) weight = weights[i];
  }
  return weight / round.totals[row];
}

// Column of a token in the draft's rows, -1 where it has none. `hint`: where a lower token was.
int64_t column_of(const PacelineRound& round, int64_t token, int64_t hint) {
  if (round.vocab_ids == nullptr) return token < round.draft_width ? token : -1;
  const int64_t* end = round.vocab_ids + round.draft_width;
  const int64_t* found = std::lower_bound(round.vocab_ids + hint, end, token);
  return found != end && *found == token ? found - round.vocab_ids : -1;
}

// scale * P - Q of each entry of a target row, not below zero, into `out`; returns the sum.
double excess_of(const PacelineRound& round, int64_t row, double scale, int64_t draft_row,
                 float* out) {
  const float* weights = round.weights + row * round.width;
  const float factor = static_cast<float>(scale / round.totals[row]);
  const float* draft =
      draft_row < 0 ? nullptr : round.drafts + draft_row * round.draft_width;
  if (round.ids == nullptr) {
    for (int64_t i = 0; i < round.width; ++i) out[i] = weights[i] * factor;
    if (draft != nullptr && round.vocab_ids == nullptr)
      for (int64_t i = 0; i < round.draft_width; ++i) out[i] -= draft[i];
    else if (draft != nullptr)
      for (int64_t i = 0; i < round.draft_width; ++i) out[round.vocab_ids[i]] -= draft[i];
  } else {
    const int64_t* ids = round.ids + row * round.width;
    int64_t hint = 0, before = -1;
    for (int64_t i = 0; i < round.width; ++i) {
      out[i] = weights[i] * factor;
      if (draft == nullptr || !(weights[i] > 0)) continue;
      if (ids[i] < before) hint = 0;
      before = ids[i];
      const int64_t column = column_of(round, ids[i], hint);
      if (column < 0) continue;
      hint = column;
      out[i] -= draft[column];
    }
  }
  double total = 0;
  for (int64_t start = 0; start < round.width; start += kGroup) {
    const int64_t end = std::min(start + kGroup, round.width);
    float sum = 0;
    for (int64_t i = start; i < end; ++i) {
      out[i] = out[i] > 0 ? out[i] : 0.0f;
      sum += out[i];
    }
    total += sum;
  }
  return total;
}

void settle(const PacelineRound& round, int64_t sequence, std::vector<float>& scratch) {
  const int64_t n = round.num_drafted[sequence], first = round.first_rows[sequence];
  const int64_t base = sequence * round.depth;
  const bool is_block = round.is_block[sequence] != 0;
  const double* accept = round.accept + base;
  std::vector<double> chain(n + 1, 1.0);
  int64_t passed = 0;
  double product = 1, running = 1;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t token = round.draft_ids[base + i], draft_row = round.row_index[base + i];
    double drafted = 1;
    if (draft_row >= 0) {
      const int64_t column = column_of(round, token, 0);
      drafted = column < 0 ? 0.0 : round.drafts[draft_row * round.draft_width + column];
    }
    const double wanted = target_prob(round, first + i, token);
    // A draft of probability zero cannot have been sampled; it is refused.
    const double ratio = drafted > 0 ? wanted / drafted : 0.0;
    const double token_prob = std::min(1.0, ratio);
    if (passed == i && accept[i] < token_prob) ++passed;
    product *= token_prob;
    running = std::min(1.0, running * ratio);
    if (is_block) chain[i + 1] = running;
    round.survival[base + i] = is_block ? running : product;
  }
  for (int64_t i = n; i < round.depth; ++i) round.survival[base + i] = 0;
  int64_t accepted = passed;
  if (is_block) {
    // The last success counts, so the search goes from the end.
    for (accepted = n; accepted > 0; --accepted) {
      const double value = chain[accepted];
      double threshold = value;
      if (accepted < n) {
        const double excess = excess_of(round, first + accepted, value,
                                        round.row_index[base + accepted], scratch.data());
        const double whole = excess + (1 - value);
        // 0 / 0: the chain is at 1 and the draft is right about the next row.
        threshold = whole > 0 ? excess / whole : 1.0;
      }
      if (accept[accepted - 1] < threshold) break;
    }
  }
  const int64_t row = first + accepted;
  const float* weights = round.weights + row * round.width;
  const float* drawn_from = weights;
  if (accepted < n) {
    const int64_t draft_row = round.row_index[base + accepted];
    double mass = excess_of(round, row, chain[accepted], draft_row, scratch.data());
    if (draft_row < 0) {
      // A deterministic draft had all its probability on the rejected token.
      const int64_t rejected = round.draft_ids[base + accepted];
      const int64_t* ids = round.ids == nullptr ? nullptr : round.ids + row * round.width;
      mass = 0;
      for (int64_t i = 0; i < round.width; ++i) {
        if ((ids == nullptr ? i : ids[i]) == rejected) scratch[i] = 0;
        mass += scratch[i];
      }
    }
    // Without mass, target and draft are equal up to rounding.
    if (mass > 0) drawn_from = scratch.data();
  }
  const bool is_full = accepted == n;
  const double uniform = is_full ? round.bonus[sequence] : round.residual[sequence];
  const int64_t entry = inverse_cdf(drawn_from, round.width, uniform);
  round.num_accepted[sequence] = accepted;
  round.next_token[sequence] = round.ids == nullptr ? entry : round.ids[row * round.width + entry];
  round.source[sequence] = n == 0 ? 0 : is_full ? 2 : 1;
  round.num_examined[sequence] = std::min(passed + 1, n);
  round.num_passed[sequence] = passed;
  round.next_prob[sequence] = weights[entry] / round.totals[row];
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

void paceline_settle(const PacelineRound* round, int num_threads) {
#pragma omp parallel num_threads(num_threads) \
    if (round->num_sequences > 1 && round->num_sequences * round->width >= kWorthThreads)
  {
    std::vector<float> scratch(round->width);
#pragma omp for schedule(dynamic)
    for (int64_t sequence = 0; sequence < round->num_sequences; ++sequence)
      settle(*round, sequence, scratch);
  }
}

// Rounds in which every row has one token of its own: samples [rows]; the drafts of a sequence are
// accepted while they are these. Sequences lie `depth` apart in draft_ids and survival. counts: the
// integers of an outcome one after the other, num_sequences each, in the order of `PacelineRound`.
void paceline_match(const int64_t* samples, const int64_t* draft_ids, const int64_t* num_drafted,
                    const int64_t* first_rows, int64_t num_sequences, int64_t depth,
                    int64_t* counts, double* survival) {
  for (int64_t sequence = 0; sequence < num_sequences; ++sequence) {
    const int64_t n = num_drafted[sequence];
    const int64_t* own = samples + first_rows[sequence];
    const int64_t* drafts = draft_ids + sequence * depth;
    int64_t accepted = 0;
    while (accepted < n && own[accepted] == drafts[accepted]) ++accepted;
    int64_t* out = counts + sequence;
    out[0] = accepted;
    out[num_sequences] = own[accepted];
    out[2 * num_sequences] = n == 0 ? 0 : accepted == n ? 2 : 1;
    out[3 * num_sequences] = accepted < n ? accepted + 1 : n;
    out[4 * num_sequences] = accepted;
    for (int64_t place = 0; place < depth; ++place)
      survival[sequence * depth + place] = place < accepted ? 1.0 : 0.0;
  }
}

// An index of each row of `weights` [num_rows, width].
void paceline_inverse_cdf(const float* weights, int64_t num_rows, int64_t width,
                          const double* uniforms, int64_t* out) {
  for (int64_t row = 0; row < num_rows; ++row)
    out[row] = inverse_cdf(weights + row * width, width, uniforms[row]);
}

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

// The lowest index of the highest logit of each row, and that logit; NaN where a row holds one.
void paceline_highest(const void* logits, int is_bfloat16, int64_t stride, int64_t num_rows,
                      int64_t width, int64_t* places, float* peaks, int num_threads) {
  if (is_bfloat16)
    highest(static_cast<const uint16_t*>(logits), stride, num_rows, width, places, peaks,
            num_threads);
  else
    highest(static_cast<const float*>(logits), stride, num_rows, width, places, peaks, num_threads);
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

}  // extern "C"
