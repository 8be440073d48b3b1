"""The random numbers of sampling: known answers, range, and independence of streams."""

from __future__ import annotations

import numpy as np
import pytest

from ocrquant.kernels.sample.stream import Purpose, philox4x32, uniform

PI = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)


@pytest.mark.parametrize(
    ("counter", "key", "wanted"),
    [
        ((0,) * 4, (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (PI, (0xA4093822, 0x299F31D0), (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
    ],
)
def test_known_answers_of_random123(counter, key, wanted) -> None:
    assert philox4x32(counter, key) == wanted


def test_numbers_are_uniform() -> None:
    numbers = np.array([uniform((7, -3), p) for p in range(4000)])
    assert numbers.min() >= 0
    assert numbers.max() < 1
    counts, _ = np.histogram(numbers, bins=20, range=(0, 1))
    assert ((counts - 200) ** 2 / 200).sum() < 43.8  # 0.1 % of a chi-square of 19 degrees


def test_purposes_positions_and_seeds_have_streams_of_their_own() -> None:
    keys = [((s, t), p, u) for s in (0, 1, -1) for t in (0, 1) for p in (0, 1, 70_000) for u in Purpose]
    assert len({uniform(*key) for key in keys}) == len(keys)
