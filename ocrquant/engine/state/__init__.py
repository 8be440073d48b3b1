"""The recurrent states of Gated DeltaNet layers, so that drafted tokens can be undone.

`StatePool` is what an engine sees. `NativePool` does accepted tokens again, `SnapshotPool` keeps one state
for each drafted token, `ReplayPool` one checkpoint and small records (ReplaySSM). Knows no scheduler and no
pages, and of models only what passes through a step.
"""

from __future__ import annotations

from ocrquant.engine.state.base import StatePool, StateSnapshot
from ocrquant.engine.state.native import NativePool
from ocrquant.engine.state.replay import ReplayPool
from ocrquant.engine.state.snapshot import SnapshotPool

__all__ = ["NativePool", "ReplayPool", "SnapshotPool", "StatePool", "StateSnapshot"]
