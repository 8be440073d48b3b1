"""The table of precisions against numbers worked out by hand."""

import subprocess
import sys

import pytest

from ocrquant.errors import ShapeError
from ocrquant.formats import FORMATS, Precision


def test_every_precision_has_its_row():
    assert set(FORMATS) == set(Precision)
    assert all(FORMATS[precision].precision is precision for precision in Precision)
    assert [str(precision) for precision in Precision] == ["bf16", "fp8", "nvfp4"]


def test_bits_per_weight():
    # NVFP4: 4 bits an element and 8 bits of scale for 16 of them.
    assert [FORMATS[p].bits_per_weight for p in ("bf16", "fp8", "nvfp4")] == [16.0, 8.0, 4.0 + 8.0 / 16.0]
    assert [FORMATS[p].element_max for p in ("fp8", "nvfp4")] == [448.0, 6.0]


@pytest.mark.parametrize(
    ("precision", "per", "num_bytes"),
    [
        ("bf16", "channel", 3 * 32 * 2),
        ("fp8", "channel", 3 * 32 + 3 * 4),  # one float32 scale a row
        ("fp8", "tensor", 3 * 32 + 4),
        ("nvfp4", "channel", 3 * 32 // 2 + 3 * 2 + 4),  # nibbles, two block scales a row, one float32
    ],
)
def test_weight_bytes(precision, per, num_bytes):
    assert FORMATS[precision].weight_bytes(3, 32, per=per) == num_bytes


@pytest.mark.parametrize("width", [0, 8, 24, 31])
def test_width_that_does_not_fit_is_refused(width):
    nvfp4 = FORMATS[Precision.NVFP4]
    assert not nvfp4.fits(width)
    with pytest.raises(ShapeError, match=r"\[4, \d+\] in nvfp4: expected .* multiple of 16, got \d+; keep"):
        nvfp4.weight_bytes(4, width)


def test_width_that_fits():
    assert FORMATS[Precision.NVFP4].fits(48)
    assert FORMATS[Precision.FP8].fits(31)


def test_the_table_needs_no_torch():
    code = "import sys, ocrquant.formats, ocrquant.metrics.text; print('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "False\n"
