"""Measurements: arms interleaved, medians with intervals, the machine's own ceiling beside them."""
