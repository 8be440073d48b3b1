"""Sizes over a sweep against transformers, and the bounds that a page of tokens rests on."""

from __future__ import annotations

import pytest
from transformers.models.paddleocr_vl import image_processing_pil_paddleocr_vl as paddle
from transformers.models.qwen2_vl import image_processing_pil_qwen2_vl as qwen

from ocrquant.errors import PageSizeError
from ocrquant.models.processing import image_spec
from ocrquant.models.processing.resize import paddleocr_vl_size, qwen_size

RULES = [
    pytest.param(qwen_size, qwen.smart_resize, (20, 400, 640_000), id="pico"),
    pytest.param(qwen_size, qwen.smart_resize, (32, 65_536, 16_777_216), id="qwen3_5"),
    pytest.param(paddleocr_vl_size, paddle.smart_resize, (28, 147_384, 2_822_400), id="paddleocr_vl"),
]
SMALL = [(height, width) for height in range(1, 65) for width in range(1, 65)]
LARGE = [(height, width) for height in range(1, 2001, 13) for width in range(1, 2001, 17)]


@pytest.mark.parametrize(("ours", "theirs", "settings"), RULES)
def test_sizes_from_1_to_2000(ours, theirs, settings):
    refused = 0
    for height, width in [*SMALL, *LARGE]:
        try:
            expected = theirs(height, width, *settings)
        except ValueError:
            refused += 1
            with pytest.raises(PageSizeError):
                ours(height, width, *settings)
            continue
        found = ours(height, width, *settings)
        assert found == expected, (height, width)
        assert min(found) >= settings[0]
        assert found[0] % settings[0] == found[1] % settings[0] == 0
        assert found[0] * found[1] >= settings[1] or settings[1] > settings[2]
    assert refused > 0


def test_a_crop_of_23_by_3_pixels():
    assert qwen_size(3, 23, 20, 400, 640_000) == (20, 60)
    assert paddleocr_vl_size(3, 23, 28, 147_384, 2_822_400) == (140, 1064)
    spec = image_spec("paddleocr_vl", {}, "settings")
    assert len(spec.patches(_black(23, 3))[0]) == 4 * spec.num_tokens(23, 3)


def test_ties_go_to_the_even_multiple():
    assert qwen_size(30, 50, 20, 400, 640_000) == (40, 40)


@pytest.mark.parametrize("rule", [qwen_size, paddleocr_vl_size])
def test_no_pixels(rule):
    with pytest.raises(PageSizeError, match="leave it out"):
        rule(0, 5, 20, 400, 640_000)


def _black(width, height):
    from PIL import Image

    return Image.new("RGB", (width, height))
