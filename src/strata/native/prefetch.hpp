// Fetching planes ahead: what the processor does by itself ends with each page, and with each small tile.
#pragma once

#include "inline.hpp"
#include "layout.hpp"

namespace strata {

// Asks for the lines of a tile, and of the one that lies after it, a page before they are read.
template <class F, class I>
class Prefetch {
public:
    STRATA_INLINE Prefetch(const Tile& tile, int k)
        : tile_(tile),
          num_steps_(k / kStep),
          distance_(num_steps_ < page ? num_steps_ : page),
          tile_bytes_((k / f.gguf_block * block_bytes + 63) / 64 * 64) {}

    // To be called once for every step.
    STRATA_INLINE void fetch(int step) const {
        fetch_plane<per_step.low>(tile_.low, step);
        fetch_plane<per_step.high>(tile_.high, step);
        fetch_plane<per_step.scale>(tile_.scale, step);
        fetch_plane<per_step.minimum>(tile_.minimum, step);
        fetch_plane<per_step.sub>(tile_.sub, step);
        fetch_plane<per_step.sub_minimum>(tile_.sub_minimum, step);
        fetch_plane<per_step.extra>(tile_.extra, step);
    }

private:
    static constexpr Layout f = F::layout;
    // plan_tile is for the compiler alone here: as no template, it must not be compiled with a set's flags.
    static constexpr size_t block_bytes = plan_tile(f, 64 * f.gguf_block).bytes / 64;

    // Bytes of each plane that a step reads.
    struct Bytes {
        size_t low, high, scale, minimum, sub, sub_minimum, extra;
    };
    static constexpr Bytes per_step = [] {
        constexpr size_t steps = 8;
        TilePlan p = plan_tile(f, steps * kStep);
        return Bytes{(p.high - p.low) / steps,
                     (p.scale - p.high) / steps,
                     (p.minimum - p.scale) / steps,
                     (p.sub - p.minimum) / steps,
                     (p.sub_minimum - p.sub) / steps,
                     (p.extra - p.sub_minimum) / steps,
                     size_t{kTileRows} * f.grid.extra_bits / 8};
    }();
    static constexpr size_t page = 4096 / (per_step.low + per_step.high);  // steps

    template <size_t bytes>
    STRATA_INLINE void fetch_plane(const uint8_t* plane, int step) const {
        size_t far = step + distance_, skip = far < num_steps_ ? 0 : tile_bytes_ - num_steps_ * bytes;
        STRATA_UNROLL
        for (size_t i = 0; i < bytes; i += 64) I::prefetch(plane + far * bytes + skip + i);
    }

    const Tile& tile_;
    size_t num_steps_, distance_, tile_bytes_;  // no further than the next tile
};

}  // namespace strata
