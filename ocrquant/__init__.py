"""Mixed-precision quantization of document-parsing vision-language models, measured on your own pages.

Importing the package loads no torch, so that the command line answers at once.
"""

from __future__ import annotations

__all__ = ["__version__"]

__version__ = "0.1.0"
