"""How each group of kernels is proved; `catalog.py` says what a module here contains."""
