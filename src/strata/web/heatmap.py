"""The map of layers and experts: how often each was chosen lately and where it lives, drawn on a canvas.

A canvas rather than a chart: a large model has 25 thousand cells, which as a byte each are one small message
and one picture a second.
"""

import base64
import json

import numpy as np
from nicegui import ui

from strata.engine.messages import ExpertLayout
from strata.serve.status import Experts

FULL = 8.0  # times the average is the strongest colour


class HeatMap:
    """The map on a page; empty until `show`."""

    def __init__(self) -> None:
        with ui.element("div").classes("strata-heat"):
            self._canvas = ui.element("canvas").props("role=img").classes("strata-heat-canvas")
            self._cell = ui.label().classes("strata-note strata-heat-cell")
        self._words = ui.label().classes("strata-note")
        with ui.element("div").classes("strata-heat-legend strata-note").props("aria-hidden=true"):
            ui.label("never")
            ui.element("span").classes("strata-heat-scale")
            ui.label(f"{FULL:.0f} × the average")
            with ui.element("span").classes("strata-heat-held") as self._held:
                ui.element("span").classes("strata-heat-scale strata-heat-scale-held")
                ui.label("the same, in VRAM")

    def show(self, experts: Experts) -> None:
        """Draw the present use."""
        shares = relative_use(experts.recent)
        words = describe(experts.layout, shares, experts.held, experts.hits, experts.misses)
        self._held.set_visibility(experts.held is not None)
        self._words.text = words
        self._canvas.props["aria-label"] = f"Map of layers and experts. {words}"
        picture = {
            "canvas": self._canvas.html_id,
            "cell": self._cell.html_id,
            "layers": experts.layout.layers,
            "experts": experts.layout.experts,
            "full": FULL,
            "cells": base64.b64encode(levels(shares).tobytes()).decode(),
            "held": None if experts.held is None else base64.b64encode(experts.held.tobytes()).decode(),
        }
        ui.run_javascript(f"strata.drawHeat({json.dumps(picture)})")


def relative_use(recent: np.ndarray) -> np.ndarray:
    """Choices float32 `[layers, experts]` -> the same as multiples of the layer's average; 0 without any."""
    mean = recent.mean(1, keepdims=True)
    return np.divide(recent, mean, out=np.zeros_like(recent), where=mean > 0)


def levels(shares: np.ndarray) -> np.ndarray:
    """Multiples of the average -> uint8, 255 for `FULL` and more; by square roots, as most are small."""
    return np.rint(255 * np.sqrt(np.clip(shares / FULL, 0, 1))).astype(np.uint8)


def describe(
    layout: ExpertLayout, shares: np.ndarray, held: np.ndarray | None = None, hits: int = 0, misses: int = 0
) -> str:
    """The map in words: where the experts are, and how unevenly they are used.

    Args:
        layout: of the experts.
        shares: as of `relative_use`.
        held: bool of the same shape, those in VRAM; None without a card.
        hits, misses: experts that steps asked for and found in VRAM, and did not find there.
    """
    place = "the mapped file, decoded when used" if layout.tier == "mapped file" else "RAM"
    words = f"{shares.size:,} experts in {len(layout.layers)} layers, all in {place}."
    if held is not None:
        words = f"{words[:-1]}, {held.sum():,} of {held.size:,} in VRAM too."
    if hits + misses:
        words += f" Answers found {100 * hits / (hits + misses):.0f} % of those that they used there."
    if not shares.any():
        return f"{words} None was used yet."
    ordered = np.sort(shares, axis=None)[::-1].cumsum()
    most = int(np.searchsorted(ordered, 0.8 * ordered[-1])) + 1
    layer, expert = np.unravel_index(shares.argmax(), shares.shape)
    return (
        f"{words} {100 * most / shares.size:.0f} % of all take 80 % of the recent choices; the busiest is "
        f"expert {expert} of layer {layout.layers[layer]}, {shares.max():.1f} × the average."
    )
