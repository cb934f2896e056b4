// What every kernel source uses on the device and on the host.
//
// Includes nothing on the device: NVRTC compiles it without a host header in sight.
#pragma once

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define DDTREE_FN __device__ __forceinline__
#define DDTREE_UNROLL _Pragma("unroll")
#define DDTREE_ROLLED _Pragma("unroll 1")
#else
#include <math.h>
#define DDTREE_FN inline
#define DDTREE_UNROLL
#define DDTREE_ROLLED
#endif

namespace ddtree {

typedef long i64;
typedef unsigned long u64;
typedef unsigned u32;
static_assert(sizeof(i64) == 8 && sizeof(u32) == 4, "an LP64 platform is assumed");

constexpr int kNone = -1;  // no node, no token

DDTREE_FN u32 float_bits(float value) {
#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
  return __float_as_uint(value);
#else
  return __builtin_bit_cast(u32, value);
#endif
}

DDTREE_FN float float_of(u32 bits) {
#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
  return __uint_as_float(bits);
#else
  return __builtin_bit_cast(float, bits);
#endif
}

constexpr u32 kInfinityBits = 0x7f800000u;

DDTREE_FN float negative_infinity() { return float_of(0x80000000u | kInfinityBits); }

DDTREE_FN bool is_finite(float value) {
  return (float_bits(value) & kInfinityBits) != kInfinityBits;
}

// The fp32 value of a bfloat16 in the low 16 bits.
DDTREE_FN float bf16_value(u32 bits) { return float_of(bits << 16); }

// The fp32 value of an IEEE half in the low 16 bits, exactly. Subnormal halves are scaled integers,
// so no fp32 subnormal occurs that a flush-to-zero mode could lose.
DDTREE_FN float fp16_value(u32 bits) {
#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
  // One instruction; the code below would be branches for each element.
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(static_cast<unsigned short>(bits)));
  return value;
#else
  const u32 sign = (bits & 0x8000u) << 16;
  const u32 magnitude = bits & 0x7fffu;
  if (magnitude >= 0x7c00u) return float_of(sign | kInfinityBits | (magnitude & 0x3ffu) << 13);
  if (magnitude >= 0x0400u) return float_of(sign | ((magnitude << 13) + (112u << 23)));
  constexpr float kLeast = 1.0f / 16777216.0f;  // 2^-24
  return float_of(sign | float_bits(static_cast<float>(magnitude) * kLeast));
#endif
}

// fp32 as an unsigned integer of the same order; -0.0 and +0.0 are one. Not for NaN.
DDTREE_FN u32 orderable(float value) {
  const u32 bits = float_bits(value);
  if (bits == 0x80000000u) return bits;
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

DDTREE_FN float from_orderable(u32 order) {
  return float_of((order & 0x80000000u) != 0 ? order & 0x7fffffffu : ~order);
}

}  // namespace ddtree
