#include "tensor.hpp"

#include <new>

namespace strata {

namespace {

constexpr int32_t kCpu = 1;
constexpr std::align_val_t kCacheLine{64};

struct Version {
    uint32_t major, minor;
};

// DLManagedTensorVersioned of the DLPack ABI.
struct ManagedTensor {
    Version version;
    void* context;
    void (*deleter)(ManagedTensor*);
    uint64_t flags;
    DLTensor tensor;
};

// DLPackExchangeAPI of the DLPack ABI.
struct ExchangeApi {
    Version version;
    ExchangeApi* previous;
    void* allocate;
    int (*from_object)(void* object, ManagedTensor** out);
    int (*to_object)(ManagedTensor* tensor, void** object);
    int (*read_object)(void* object, DLTensor* out);
    void* current_stream;
};

// A result: header, shape, strides and numbers in one allocation.
struct Result {
    ManagedTensor managed;
    int64_t shape[4], strides[4];
};
constexpr size_t kDataOffset = (sizeof(Result) + 63) / 64 * 64;

const ExchangeApi* api = nullptr;
PyTypeObject* tensor_type = nullptr;

}  // namespace

void load_tensor_api() {
    nb::object type = nb::module_::import_("torch").attr("Tensor");
    nb::object capsule = type.attr("__dlpack_c_exchange_api__");
    auto* found = static_cast<const ExchangeApi*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
    if (!found) throw nb::python_error();
    while (found && found->version.major > 1) found = found->previous;
    if (!found || !found->read_object) throw nb::import_error("this torch exchanges no tensors by DLPack 1");
    tensor_type = reinterpret_cast<PyTypeObject*>(type.release().ptr());
    api = found;
}

bool read_tensor(nb::handle object, DLTensor& tensor) {
    if (!PyObject_TypeCheck(object.ptr(), tensor_type)) return false;
    if (api->read_object(object.ptr(), &tensor)) {
        PyErr_Clear();
        return false;
    }
    return tensor.device_type == kCpu;
}

nb::object new_tensor(uint8_t dtype_code, uint8_t dtype_bits, std::initializer_list<int64_t> shape,
                      void** data) {
    size_t bytes = dtype_bits / 8;
    for (int64_t n : shape) bytes *= n;
    void* memory = ::operator new(kDataOffset + bytes, kCacheLine);
    auto* result = new (memory) Result{};
    int ndim = 0;
    for (int64_t n : shape) result->shape[ndim++] = n;
    int64_t stride = 1;
    for (int i = ndim - 1; i >= 0; --i) {
        result->strides[i] = stride;
        stride *= result->shape[i];
    }
    *data = static_cast<char*>(memory) + kDataOffset;
    result->managed = {{1, 0},
                       nullptr,
                       [](ManagedTensor* m) { ::operator delete(static_cast<void*>(m), kCacheLine); },
                       0,
                       {*data, kCpu, 0, ndim, dtype_code, dtype_bits, 1, result->shape, result->strides, 0}};
    void* object;
    if (api->to_object(&result->managed, &object)) throw nb::python_error();
    return nb::steal(static_cast<PyObject*>(object));
}

}  // namespace strata
