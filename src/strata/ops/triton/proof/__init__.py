"""Compiling the engine's launches for cards that are not here, and what the machine code says about them."""
