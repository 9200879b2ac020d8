// Vectors as arrays of their lanes, lane 0 first.
#pragma once

#include <immintrin.h>

#include <array>
#include <cstdint>
#include <cstring>

namespace strata {

template <class T, class V>
using Lanes = std::array<T, sizeof(V) / sizeof(T)>;

template <class T, class V>
Lanes<T, V> lanes(const V& vector) {
    Lanes<T, V> r;
    std::memcpy(&r, &vector, sizeof r);
    return r;
}

template <class V, class T>
V vector(const std::array<T, sizeof(V) / sizeof(T)>& lanes) {
    V r;
    std::memcpy(&r, &lanes, sizeof r);
    return r;
}

// Lane i of the result is lane(i).
template <class V, class T, class Lane>
V make(Lane lane) {
    Lanes<T, V> r;
    for (size_t i = 0; i < r.size(); ++i) r[i] = static_cast<T>(lane(i));
    return vector<V, T>(r);
}

// Lane i of the result is op(lane i of a, lane i of b).
template <class T, class V, class Op>
V map(const V& a, const V& b, Op op) {
    auto x = lanes<T>(a), y = lanes<T>(b);
    return make<V, T>([&](size_t i) { return op(x[i], y[i]); });
}

template <class T, class V, class Op>
V map(const V& a, Op op) {
    auto x = lanes<T>(a);
    return make<V, T>([&](size_t i) { return op(x[i]); });
}

inline bool bit(uint64_t bits, size_t i) { return bits >> i & 1; }

// Bit i of the result is whether condition(lane i of a, lane i of b).
template <class Mask, class T, class V, class Condition>
Mask mask_of(const V& a, const V& b, Condition condition) {
    auto x = lanes<T>(a), y = lanes<T>(b);
    Mask r = 0;
    for (size_t i = 0; i < x.size(); ++i) r |= static_cast<Mask>(condition(x[i], y[i])) << i;
    return r;
}

}  // namespace strata
