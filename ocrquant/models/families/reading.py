"""What configurations of all families have in common: rotary settings new and old, a vision side or none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ocrquant.models.config import Section
from ocrquant.models.vision import VisionTower
from ocrquant.models.weights import WeightReader

__all__ = ["rope_section", "vision_parts"]


def rope_section(text: Section) -> tuple[Section, float]:
    """The section with the rotary settings, and theta.

    Args:
        text: Configuration of the text side: ``rope_parameters``, or ``rope_scaling`` with ``rope_theta``
            beside it, as files from before ``transformers`` 5 have it.

    Raises:
        ModelError: Positions are stretched, or a setting is missing.
    """
    key = "rope_parameters" if text.data.get("rope_parameters") else "rope_scaling"
    rope = text.section(key)
    for name in ("rope_type", "type"):
        rope.choice(name, ("default", "mrope"), "default")
    return rope, (rope if rope.data.get("rope_theta") else text).number("rope_theta")


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
    return make(config.data, reader), config.token("image_token_id")
