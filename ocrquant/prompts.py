"""What a model is asked to do with a page of each kind.

Knows instructions; knows no tokens but the question whether a tokenizer has one for a whole instruction.
Lies below every part that asks a model: the Hugging Face side and the runtime ask the same.
"""

from __future__ import annotations

from collections.abc import Container, Mapping

from ocrquant.errors import RecipeError

__all__ = ["FAMILY_PROMPTS", "GENERAL_PROMPTS", "KINDS", "PICO_PROMPTS", "prompts_for"]

KINDS = ("line", "block", "page")

GENERAL_PROMPTS: Mapping[str, str] = {
    "line": "Transcribe the line of text in this image exactly. Output only the text.",
    "block": "Transcribe the text in this image exactly, line by line. Output only the text.",
    "page": "Transcribe all text of this page in reading order. Output only the text.",
}
"""Instructions for a model that follows any."""

PICO_PROMPTS: Mapping[str, str] = {
    "line": "Read the line.",
    "block": "Read the block.",
    "page": "Read the block.",
}
"""Instructions of pico, each one token of its vocabulary; it was never shown whole pages."""

FAMILY_PROMPTS: Mapping[str, Mapping[str, str]] = {
    "deepseek_ocr2": dict.fromkeys(KINDS, "Free OCR."),
    "glm_ocr": dict.fromkeys(KINDS, "Text Recognition:"),
    "got_ocr2": dict.fromkeys(KINDS, "OCR: "),
    "lighton_ocr": dict.fromkeys(KINDS, ""),
    "paddleocr_vl": dict.fromkeys(KINDS, "OCR:"),
}
"""Instructions by ``model_type`` of a family that was trained on a fixed few, as its model card states."""


def prompts_for(
    vocabulary: Container[str], overrides: Mapping[str, str] | None = None, *, model_type: str = ""
) -> dict[str, str]:
    """Kind of page -> instruction.

    A tokenizer with whole instructions among its tokens belongs to a model that knows no others.

    Args:
        vocabulary: All tokens of the tokenizer.
        overrides: What the recipe says for some kinds.
        model_type: Family of the model, for one that answers only to its own instructions.

    Raises:
        RecipeError: A kind that does not exist, or an empty instruction.
    """
    default = PICO_PROMPTS if all(p in vocabulary for p in PICO_PROMPTS.values()) else GENERAL_PROMPTS
    default = FAMILY_PROMPTS.get(model_type, default)
    for kind, prompt in (overrides or {}).items():
        if kind not in KINDS or not prompt.strip():
            expected = f"a text for one of {', '.join(KINDS)}"
            raise RecipeError(
                "model.prompts", expected=expected, given=f"{kind}: {prompt!r}", fix="correct the recipe"
            )
    return {**default, **(overrides or {})}
