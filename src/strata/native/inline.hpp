// How the templates of an instruction set are inlined and unrolled.
#pragma once

#define STRATA_NOINLINE __attribute__((noinline))

// The portable set leaves unrolling to the compiler: its lanes are loops already.
#if defined(__GNUC__) && !defined(STRATA_PORTABLE)
#define STRATA_INLINE inline __attribute__((always_inline))
#define STRATA_UNROLL _Pragma("GCC unroll 8")
#else
#define STRATA_INLINE inline
#define STRATA_UNROLL
#endif
