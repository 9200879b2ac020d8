"""The arithmetic on a graphics card: Triton kernels and the functions that launch them, one module per op.

The torch ops of the same names in `strata.ops` are the truth. `catalog` lists what proves it: `checks/`
compares each kernel with its reference (on a card: `strata doctor --kernels`, without one: in Triton's
interpreter) and says which launches `strata doctor --compile` compiles for the cards that are not here.
"""
