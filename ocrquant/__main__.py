"""``python -m ocrquant`` is the same as the ``ocrquant`` command."""

from __future__ import annotations

from ocrquant.cli import app

if __name__ == "__main__":
    app()
