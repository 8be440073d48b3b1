"""What configurations of all families have in common: rotary settings new and old, a vision side or none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ocrquant.models.config import Section
from ocrquant.models.vision import VisionTower
from ocrquant.models.weights import WeightReader

__all__ = ["IRRELEVANT_OUTER", "axis_sections", "rope_section", "vision_parts"]

AXES = 3

IRRELEVANT_OUTER = (
    "image_token_id",  # read with the vision side
    "vision_config",
    "quantization_config",  # whoever opens the checkpoint compares it with the tensors
    "video_token_id",
    "vision_start_token_id",
    "vision_end_token_id",
)
"""Keys at the top of the file that change no answer for a page."""


def rope_section(text: Section) -> tuple[Section, float]:
    """The section with the rotary settings, and theta.

    Args:
        text: Configuration of the text side: ``rope_parameters``, or ``rope_scaling`` with ``rope_theta``
            beside it, as files from before ``transformers`` 5 have it.

    Raises:
        ModelError: Positions are stretched, a setting is missing, or two say different things.
    """
    new, old = text.raw("rope_parameters"), text.raw("rope_scaling")
    text.expect(not (new and old) or new == old, "rope_scaling", "what rope_parameters says, or none", old)
    rope = text.section("rope_parameters" if new else "rope_scaling")
    for name in ("rope_type", "type"):
        rope.choice(name, ("default", "mrope"), "default")
    theta = (rope if rope.data.get("rope_theta") else text).number("rope_theta")
    beside = text.raw("rope_theta")
    text.expect(beside in (None, theta), "rope_theta", f"{theta}, as beside the sections, or none", beside)
    return rope, theta


def axis_sections(rope: Section, default: list[int]) -> list[int]:
    """How many frequencies turn with time, height and width.

    Raises:
        ModelError: They are not three numbers of at least 0.
    """
    sections = rope.integers("mrope_section", default)
    is_sound = len(sections) == AXES and min(sections) >= 0
    rope.expect(is_sound, "mrope_section", f"{AXES} whole numbers >= 0", sections)
    return sections


def vision_parts(
    config: Section,
    reader: WeightReader,
    make: Callable[[Mapping[str, Any], WeightReader], VisionTower],
) -> tuple[VisionTower | None, int | None]:
    """The vision tower and the token that stands for an image; nothing for a configuration of text alone.

    Args:
        config: ``config.json``.
        reader: The checkpoint.
        make: Makes the family's tower from both.
    """
    if not config.data.get("vision_config"):
        return None, None
    config.section("vision_config")  # refuses what is no section
    return make(config.data, reader), config.token("image_token_id")
