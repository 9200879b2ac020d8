"""The map of layers and experts: how often each was chosen lately, drawn by the browser on a canvas.

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

    def show(self, experts: Experts) -> None:
        """Draw the present use."""
        shares = relative_use(experts.recent)
        words = describe(experts.layout, shares)
        self._words.text = words
        self._canvas.props["aria-label"] = f"Map of layers and experts. {words}"
        picture = {
            "canvas": self._canvas.html_id,
            "cell": self._cell.html_id,
            "layers": experts.layout.layers,
            "experts": experts.layout.experts,
            "full": FULL,
            "cells": base64.b64encode(levels(shares).tobytes()).decode(),
        }
        ui.run_javascript(f"strata.drawHeat({json.dumps(picture)})")


def relative_use(recent: np.ndarray) -> np.ndarray:
    """Choices float32 `[layers, experts]` -> the same as multiples of the layer's average; 0 without any."""
    mean = recent.mean(1, keepdims=True)
    return np.divide(recent, mean, out=np.zeros_like(recent), where=mean > 0)


def levels(shares: np.ndarray) -> np.ndarray:
    """Multiples of the average -> uint8, 255 for `FULL` and more; by square roots, as most are small."""
    return np.rint(255 * np.sqrt(np.clip(shares / FULL, 0, 1))).astype(np.uint8)


def describe(layout: ExpertLayout, shares: np.ndarray) -> str:
    """The map in words: where the experts are, and how unevenly they are used."""
    place = {
        "VRAM and RAM": "RAM, with copies of some in VRAM",
        "RAM": "RAM",
        "mapped file": "the mapped file, decoded when used",
    }[layout.tier]
    words = f"{shares.size:,} experts in {len(layout.layers)} layers, all in {place}."
    if not shares.any():
        return f"{words} None was used yet."
    ordered = np.sort(shares, axis=None)[::-1].cumsum()
    most = int(np.searchsorted(ordered, 0.8 * ordered[-1])) + 1
    layer, expert = np.unravel_index(shares.argmax(), shares.shape)
    return (
        f"{words} {100 * most / shares.size:.0f} % of them take 80 % of the recent choices; the busiest is "
        f"expert {expert} of layer {layout.layers[layer]}, {shares.max():.1f} × the average."
    )
