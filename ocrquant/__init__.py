"""Mixed-precision quantization of document-parsing vision-language models, measured on your own pages.

Importing the package loads no torch: the command line stays quick, and a machine without torch can still read run folders.
"""

from __future__ import annotations

__all__ = ["__version__"]

__version__ = "0.1.0"
