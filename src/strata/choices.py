"""Choices that options, the engine's messages and the planner share."""

from typing import Literal

Dense = Literal["as_stored", "q8_0"]  # float matrices
KV = Literal["f16", "int8"]  # keys and values on a card
