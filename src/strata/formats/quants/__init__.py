"""The tensor types of ggml that Strata decodes, one module per family.

To add one: write its layout and decoder in the module of its family, list it there, and add its name
to `tests/formats/test_quants.py`, which compares every decoder with gguf-py bit by bit.
"""

from strata.formats.quants.base import QuantFormat
from strata.formats.quants.grid import GRID
from strata.formats.quants.k import K
from strata.formats.quants.plain import PLAIN
from strata.formats.quants.scaled import SCALED
from strata.formats.quants.table import TABLE

FORMATS: dict[str, QuantFormat] = {f.name: f for f in (*PLAIN, *SCALED, *K, *GRID, *TABLE)}
FORMATS_BY_ID: dict[int, QuantFormat] = {f.ggml_id: f for f in FORMATS.values()}

# Types that ggml knows and Strata refuses, so that the refusal can name them.
UNSUPPORTED_NAMES: dict[int, str] = {
    9: "Q8_1", 15: "Q8_K", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64",
    34: "TQ1_0", 35: "TQ2_0", 41: "Q1_0",
}  # fmt: skip

__all__ = ["FORMATS", "FORMATS_BY_ID", "UNSUPPORTED_NAMES", "QuantFormat"]
