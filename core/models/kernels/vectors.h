// Vectors of float32, as wide as the processor has them.
#pragma once
#include <cstdint>

namespace {

#if defined(__AVX512F__)
constexpr int LANES = 16;
#elif defined(__AVX__)
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif

typedef float Vec __attribute__((vector_size(4 * LANES)));
typedef float Anywhere __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

// as many numbers as a vector holds, or one
template <class V> constexpr int64_t WIDTH = sizeof(V) / sizeof(float);
template <class V> V load(const float *from);
template <> inline Vec load<Vec>(const float *from) {
    return *reinterpret_cast<const Anywhere *>(from);
}
template <> inline float load<float>(const float *from) { return *from; }
inline void store(float *to, Vec value) { *reinterpret_cast<Anywhere *>(to) = value; }
inline void store(float *to, float value) { *to = value; }

}  // namespace
