"""The bytes that each token stands for, read once from a tokenizer, so that no step calls it.

Knows the decoders of the supported families: bytes as letters (Qwen), words with bytes as a fallback (ERNIE,
Llama), and plain words (pico). Refuses others, rather than decode them almost right.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ocrquant.errors import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["Vocabulary", "read_vocabulary"]

SPACE_MARK = "\u2581"
BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What tokens stand for.

    Attributes:
        pieces: Bytes by token id; special tokens have none.
        strip_space: Whether a text's first space is the mark of a word's beginning and no part of it.
    """

    pieces: tuple[bytes, ...]
    strip_space: bool = False

    def piece(self, token: int) -> bytes:
        """Bytes of a token; none for an id beyond the vocabulary, which an output head may be padded with."""
        return self.pieces[token] if token < len(self.pieces) else b""

    def join(self, tokens: Iterable[int]) -> bytes:
        """Bytes of tokens one after another."""
        return b"".join(map(self.piece, tokens))


def read_vocabulary(tokenizer: PreTrainedTokenizerBase) -> Vocabulary:
    """The bytes of all tokens of a tokenizer.

    Raises:
        ModelError: The tokenizer joins tokens in a way that is not known here.
    """
    backend = json.loads(tokenizer.backend_tokenizer.to_str())
    decoder = backend["decoder"]
    to_bytes, strip_space = _decoder(decoder)
    if getattr(tokenizer, "clean_up_tokenization_spaces", False):
        raise _unknown("clean_up_tokenization_spaces")
    special = {token["id"] for token in backend["added_tokens"] if token["special"]}
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    pieces = [b""] * (1 + max(vocabulary.values()))
    for text, token in vocabulary.items():
        pieces[token] = b"" if token in special else to_bytes(text)
    return Vocabulary(tuple(pieces), strip_space)


def _decoder(decoder: dict[str, Any] | None) -> tuple[Callable[[str], bytes], bool]:
    """How a token becomes bytes, and whether the first space goes."""
    steps = [] if decoder is None else decoder.get("decoders", [decoder])
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"]:
        return _letters_to_bytes(), False
    if kinds == ["Fuse"]:
        return str.encode, False
    if kinds in (["Replace", "ByteFallback", "Fuse"], ["Replace", "ByteFallback", "Fuse", "Strip"]):
        replace = steps[0]
        strip = steps[-1] if kinds[-1] == "Strip" else None
        marks_spaces = replace["pattern"] == {"String": SPACE_MARK} and replace["content"] == " "
        one_space = strip is None or (strip["content"], strip["start"], strip["stop"]) == (" ", 1, 0)
        if marks_spaces and one_space:
            return _marked_to_bytes, strip is not None
    raise _unknown(decoder)


def _unknown(given: object) -> ModelError:
    return ModelError(
        "tokenizer.json: decoder",
        expected="ByteLevel, Fuse, or Replace and ByteFallback of a SentencePiece vocabulary",
        given=given,
        fix="use the tokenizer of the model's authors",
    )


def _letters_to_bytes() -> Callable[[str], bytes]:
    """GPT-2's rule: printable bytes are themselves, the others letters from U+0100 on, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(0x100) if byte not in printable]
    letters = {chr(byte): byte for byte in printable}
    letters |= {chr(0x100 + number): byte for number, byte in enumerate(hidden)}

    def to_bytes(text: str) -> bytes:
        # A token with any other letter was added as it stands.
        return bytes(letters[c] for c in text) if all(c in letters for c in text) else text.encode()

    return to_bytes


def _marked_to_bytes(text: str) -> bytes:
    byte = BYTE_TOKEN.fullmatch(text)
    return bytes([int(byte[1], 16)]) if byte else text.replace(SPACE_MARK, " ").encode()
