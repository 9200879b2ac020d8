"""Strata: mixture-of-experts language models larger than the graphics card, on one PC."""

__version__ = "0.1.0"
