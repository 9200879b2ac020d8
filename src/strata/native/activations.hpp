// Activation rows, quantised and laid out in the panels that kernels read.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels.hpp"
#include "pool.hpp"

namespace strata {

// Rows of `k` activations as panels: of 8, 4, 2, 1 rows, or of 16 where there are more than kFewRows. The
// result of a row does not depend on its panel.
class Activations {
public:
    Activations(int rows, int k);
    Activations(Activations&&) = default;

    int rows() const { return rows_; }
    int k() const { return k_; }
    bool is_batch() const { return is_batch_; }
    int num_panels() const { return static_cast<int>(panels_.size()); }
    const Panel& panel(int i) const { return panels_[i]; }
    const Panel* panels() const { return panels_.data(); }
    int first_row(int i) const { return first_rows_[i]; }

    // Quantises the rows of panel i; `x` is float32 [rows, k], rows `stride` floats apart.
    void quantize_panel(int i, const float* x, size_t stride, QuantizeBlock quantize);
    void quantize(const float* x, size_t stride, const Kernels& kernels, Pool& pool);

    // For float matrices: the rows as they are, `stride` floats apart. They stay the caller's.
    void set_floats(const float* x, size_t stride) {
        floats_ = x;
        stride_ = stride;
    }
    const float* floats() const { return floats_; }
    size_t stride() const { return stride_; }

private:
    size_t place(const Panel& p, int m, int word) const;

    const float* floats_ = nullptr;
    size_t stride_ = 0;
    int rows_, k_;
    bool is_batch_;
    std::unique_ptr<uint32_t[]> words_;
    std::vector<Panel> panels_;
    std::vector<int> first_rows_;
};

}  // namespace strata
