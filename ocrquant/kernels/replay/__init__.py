"""ReplaySSM for the gated delta rule: a checkpoint of the state and a ring of small records of what followed.

A step reads the checkpoint once, however many drafted tokens it verifies, and drafts are undone by not moving
a cursor. `replay_rows` is the operation, `replay_fold` brings a checkpoint up to date, `move_cursors` counts
what was accepted. Knows nothing of layers or schedulers.
"""

from __future__ import annotations

from ocrquant.kernels.replay.layout import Cursors, Records
from ocrquant.kernels.replay.reference import move_cursors_reference as move_cursors
from ocrquant.kernels.replay.reference import replay_fold_reference as replay_fold
from ocrquant.kernels.replay.reference import replay_rows_reference as replay_rows

__all__ = ["Cursors", "Records", "move_cursors", "replay_fold", "replay_rows"]
