// Logits as the kernels read them: element types, and vectors of 16 bytes.
#pragma once

#include "device.h"

namespace ddtree {

constexpr int kMaxVocabulary = 1048576;  // of one row, or of one shard of it
constexpr int kVectorBytes = 16;

enum LogitType { kBf16 = 0, kFp16 = 1, kFp32 = 2 };

DDTREE_FN constexpr int element_bytes(int type) { return type == kFp32 ? 4 : 2; }

// 16 bytes of logits as they lie in memory.
struct alignas(kVectorBytes) Vector {
  u32 words[4];
};

// Of each type: elements of a vector, -inf in every element of a word, and the value of a word's
// lower (0) or upper element.
struct Bf16 {
  static constexpr int kLanes = 8;
  static constexpr u32 kAbsent = 0xff80ff80u;
  typedef unsigned short Bits;
  DDTREE_FN static float value(u32 word, int half) {
    return half == 0 ? float_of(word << 16) : float_of(word & 0xffff0000u);
  }
};

struct Fp16 {
  static constexpr int kLanes = 8;
  static constexpr u32 kAbsent = 0xfc00fc00u;
  typedef unsigned short Bits;
  DDTREE_FN static float value(u32 word, int half) {
    return fp16_value(half == 0 ? word & 0xffffu : word >> 16);
  }
};

struct Fp32 {
  static constexpr int kLanes = 4;
  static constexpr u32 kAbsent = 0xff800000u;
  typedef u32 Bits;
  DDTREE_FN static float value(u32 word, int) { return float_of(word); }
};

template <class Type>
DDTREE_FN float element(const Vector& vector, int lane) {
  constexpr int kPerWord = Type::kLanes / 4;
  return Type::value(vector.words[lane / kPerWord], lane % kPerWord);
}

}  // namespace ddtree
