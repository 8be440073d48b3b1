"""What moves when some tokens of a window are accepted: copies for all layers in one call each.

`commit_state` takes the state behind the last accepted token, `commit_tail` brings the inputs of the
convolution up to date. Knows nothing of who accepts.
"""

from __future__ import annotations

from ocrquant.kernels.window_commit.reference import commit_state_reference as commit_state
from ocrquant.kernels.window_commit.reference import commit_tail_reference as commit_tail

__all__ = ["commit_state", "commit_tail"]
