"""A model on a graphics card that is smaller than the model: its memory, its windows, and who moves."""
