"""Drift over 4,096 tokens: records in fp32 are as good as plain states; bf16 ones cost what is known."""

from __future__ import annotations

import pytest

from ocrquant.engine.state.drift import measure_drift


@pytest.mark.parametrize(
    ("num_tokens", "window", "history"), [(4096, 16, None), (1024, 16, 64), (1024, 1, 16)]
)
def test_drift_over_a_long_answer(num_tokens: int, window: int, history: int | None):
    plain, exact, short = measure_drift(num_tokens, window=window, history=history)
    assert exact.flushes == short.flushes > num_tokens / 100 > 10
    assert plain.state_error < 1e-6
    assert exact.state_error < 2 * plain.state_error
    assert exact.output_error < 1.01 * plain.output_error
    assert 1e-4 < short.state_error < 1e-2
    assert short.outputs_changed > 10 * exact.outputs_changed
