"""What a precision is: its grid, rounding, block size, scale rule, packing and size on disk.

Knows numbers and nothing else: no model, no file, no recipe. The names below need no torch; the arithmetic
lives in the submodules ``fp8`` and ``nvfp4``, which are imported by name (``from ocrquant.formats import
nvfp4``).
"""

from ocrquant.formats.precision import FORMATS, Format, Precision

__all__ = ["FORMATS", "Format", "Precision"]
