"""Where experts live and who computes them: numbers and decisions, without a device."""
