"""A page as its family's encoder left it, as a prompt of the engine."""

from __future__ import annotations

from ocrquant.engine.prompt import Prompt, PromptImage
from ocrquant.models.processing import EncodedPage

__all__ = ["page_prompt"]


def page_prompt(page: EncodedPage) -> Prompt:
    """The prompt of an encoded page."""
    image = PromptImage(
        digest=page.image_digest,
        start=page.image_start,
        num_tokens=page.num_image_tokens,
        grid=page.grid,
        pixels=page.patches,
    )
    return Prompt(page.tokens, page.positions, page.rope_delta, (image,))
