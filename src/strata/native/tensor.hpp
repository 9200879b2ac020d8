// Torch tensors without linking torch: the table of C functions that DLPack 1.3 gives every tensor type
// (`torch.Tensor.__dlpack_c_exchange_api__`, torch 2.11). Reading an argument costs 50 ns, a result 500 ns.
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <type_traits>

namespace strata {

namespace nb = nanobind;

// DLTensor of the DLPack ABI.
struct DLTensor {
    void* data;
    int32_t device_type, device_id;
    int32_t ndim;
    uint8_t dtype_code, dtype_bits;
    uint16_t dtype_lanes;
    int64_t* shape;
    int64_t* strides;
    uint64_t byte_offset;
};

// Looks the table up; called once, before any tensor is read.
void load_tensor_api();

// Fills `tensor` with what `object` has; false where it is no torch tensor on the CPU.
bool read_tensor(nb::handle object, DLTensor& tensor);

// A new torch tensor; `data` receives its uninitialised memory, which begins a cache line.
nb::object new_tensor(uint8_t dtype_code, uint8_t dtype_bits, std::initializer_list<int64_t> shape,
                      void** data);

template <class T>
constexpr uint8_t dtype_code() {
    using U = std::remove_const_t<T>;
    return std::is_same_v<U, bool> ? 6 : std::is_floating_point_v<U> ? 2 : 0;
}

[[noreturn]] inline void bad_shape(const char* name, const std::string& problem) {
    throw nb::value_error((std::string(name) + " " + problem).c_str());
}

// A tensor of up to four dimensions whose last one is contiguous; shape and strides in elements. Missing
// leading dimensions have size 1. Valid as long as the tensor.
template <class T>
struct Array {
    static constexpr int kMaxDims = 4;
    T* data = nullptr;
    int ndim = 0;
    std::array<int64_t, kMaxDims> shape{}, stride{};

    // Size and distance of dimension `i` counted from the last, which is 0.
    int64_t size(int i) const { return shape[kMaxDims - 1 - i]; }
    int64_t step(int i) const { return stride[kMaxDims - 1 - i]; }
    int64_t num_elements() const { return shape[0] * shape[1] * shape[2] * shape[3]; }
    int64_t num_rows() const { return shape[0] * shape[1] * shape[2]; }
    // Row i of `num_rows` rows of the last dimension.
    T* row(int64_t i) const {
        int64_t a = i / shape[2];
        return data + i % shape[2] * stride[2] + a % shape[1] * stride[1] + a / shape[1] * stride[0];
    }

    void expect(const char* name, std::initializer_list<int64_t> want) const {
        bool same = static_cast<int>(want.size()) == ndim;
        int i = kMaxDims - ndim;
        std::string text;
        for (int64_t n : want) {
            same = same && i < kMaxDims && shape[i++] == n;
            text += (text.empty() ? "" : ", ") + std::to_string(n);
        }
        if (same) return;
        std::string got;
        for (int j = kMaxDims - ndim; j < kMaxDims; ++j)
            got += (got.empty() ? "" : ", ") + std::to_string(shape[j]);
        bad_shape(name, "has shape [" + got + "], expected [" + text + "]");
    }
};

using Floats = Array<const float>;

// A new contiguous tensor of T; `data` receives its memory.
template <class T>
nb::object empty(std::initializer_list<int64_t> shape, T** data) {
    return new_tensor(dtype_code<T>(), sizeof(T) * 8, shape, reinterpret_cast<void**>(data));
}

// As `empty`, in the shape of `like`.
template <class T, class U>
nb::object empty_like(const Array<U>& like, T** data) {
    const auto& s = like.shape;
    switch (like.ndim) {
        case 1:
            return empty<T>({s[3]}, data);
        case 2:
            return empty<T>({s[2], s[3]}, data);
        case 3:
            return empty<T>({s[1], s[2], s[3]}, data);
        default:
            return empty<T>({s[0], s[1], s[2], s[3]}, data);
    }
}

}  // namespace strata

namespace nanobind::detail {

template <class T>
struct type_caster<strata::Array<T>> {
    NB_TYPE_CASTER(strata::Array<T>, const_name("torch.Tensor"))

    bool from_python(handle source, uint8_t, cleanup_list*) noexcept {
        strata::DLTensor t;
        constexpr int max = strata::Array<T>::kMaxDims;
        if (!strata::read_tensor(source, t) || t.dtype_code != strata::dtype_code<T>() ||
            t.dtype_bits != 8 * sizeof(T) || t.ndim < 1 || t.ndim > max)
            return false;
        value.data = reinterpret_cast<T*>(static_cast<char*>(t.data) + t.byte_offset);
        value.ndim = t.ndim;
        value.shape.fill(1);
        value.stride.fill(0);
        for (int i = 0; i < t.ndim; ++i) {
            value.shape[max - t.ndim + i] = t.shape[i];
            value.stride[max - t.ndim + i] = t.strides[i];
        }
        return value.stride[max - 1] == 1 || value.shape[max - 1] <= 1;
    }
};

}  // namespace nanobind::detail
