// The tile registers of AMX, after the pseudo-code of Intel's Intrinsics Guide and Software Developer's
// Manual. What a processor would refuse ends the process with a line that says what it was.
#include <immintrin.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace strata {

namespace {

constexpr int kTiles = 8, kRows = 16, kRowBytes = 64;

// LDTILECFG's operand.
struct Config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};
static_assert(sizeof(Config) == 64);

struct Tile {
    uint8_t bytes[kRows][kRowBytes];
};

struct Registers {
    Config config;
    Tile tiles[kTiles];
};
thread_local Registers registers;

void require(bool condition, const char* what) {
    if (condition) return;
    std::fprintf(stderr, "emulated AMX: %s\n", what);
    std::abort();
}

Tile& tile(int i) {
    require(i >= 0 && i < kTiles, "there are eight tile registers");
    require(registers.config.palette == 1 && registers.config.rows[i],
            "a tile register that is not configured");
    return registers.tiles[i];
}
int rows(int i) { return registers.config.rows[i]; }
int row_bytes(int i) { return registers.config.row_bytes[i]; }

int32_t as_int8(uint8_t x) { return static_cast<int8_t>(x); }
int32_t as_uint8(uint8_t x) { return x; }

// sums[m][n] += a[m][k] * b[k][n], each of them four products of bytes; the sums wrap around.
template <auto widen_b>
void add_products(int sums, int a, int b) {
    Tile &to = tile(sums), &x = tile(a), &y = tile(b);
    require(sums != a && sums != b && a != b, "three tile registers that are not different");
    require(rows(sums) == rows(a) && row_bytes(sums) == row_bytes(b) && row_bytes(a) == 4 * rows(b),
            "shapes that do not fit");
    require(row_bytes(sums) % 4 == 0, "a row of sums that ends within one");
    for (int m = 0; m < rows(sums); ++m)
        for (int n = 0; n < row_bytes(sums) / 4; ++n) {
            uint32_t sum;
            std::memcpy(&sum, to.bytes[m] + 4 * n, 4);
            for (int k = 0; k < row_bytes(a); ++k)
                sum += static_cast<uint32_t>(as_int8(x.bytes[m][k]) * widen_b(y.bytes[k / 4][4 * n + k % 4]));
            std::memcpy(to.bytes[m] + 4 * n, &sum, 4);
        }
}

}  // namespace

void _tile_loadconfig(const void* config) {
    Config c;
    std::memcpy(&c, config, sizeof c);
    require(c.palette == 1, "a palette other than 1");
    for (uint8_t byte : c.reserved) require(byte == 0, "a reserved byte of a configuration is not 0");
    for (int i = 0; i < 16; ++i) {
        require(c.rows[i] <= kRows && c.row_bytes[i] <= kRowBytes, "a tile register too large");
        require((c.rows[i] != 0) == (c.row_bytes[i] != 0), "a tile register with rows or columns alone");
        require(i < kTiles || c.rows[i] == 0, "there are eight tile registers");
    }
    registers = {c, {}};
}
void _tile_release() { registers = {}; }
void _tile_zero(int i) { tile(i) = {}; }
// Rows and columns beyond the configured ones become zeros.
void _tile_loadd(int i, const void* base, size_t stride) {
    Tile& to = tile(i) = {};
    for (int row = 0; row < rows(i); ++row)
        std::memcpy(to.bytes[row], static_cast<const char*>(base) + row * stride, row_bytes(i));
}
void _tile_stored(int i, void* base, size_t stride) {
    const Tile& from = tile(i);
    for (int row = 0; row < rows(i); ++row)
        std::memcpy(static_cast<char*>(base) + row * stride, from.bytes[row], row_bytes(i));
}
void _tile_dpbssd(int sums, int a, int b) { add_products<as_int8>(sums, a, b); }
void _tile_dpbsud(int sums, int a, int b) { add_products<as_uint8>(sums, a, b); }

}  // namespace strata
