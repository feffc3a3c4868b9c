// Vectors of float32 and what turns bfloat16 into them, in the compiler's own vector types.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#if defined(__AVX512BF16__)
#include <immintrin.h>
#define PACELINE_HAS_PRODUCTS 1
#else
#define PACELINE_HAS_PRODUCTS 0
#endif

namespace {

using bf16 = uint16_t;
typedef float Floats __attribute__((vector_size(64)));
typedef int32_t Ints __attribute__((vector_size(64)));
typedef uint32_t Bits __attribute__((vector_size(64)));
typedef uint16_t Halves __attribute__((vector_size(32)));
typedef float Floats8 __attribute__((vector_size(32)));
typedef float Floats4 __attribute__((vector_size(16)));

constexpr int kLanes = 16;

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

// A NaN counts as nothing.
inline float largest_of(Floats value) {
  float top = value[0];
  for (int i = 1; i < kLanes; ++i) top = value[i] > top ? value[i] : top;
  return top;
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

}  // namespace
