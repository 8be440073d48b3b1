"""A section of ``config.json`` read key by key, each with the type that the model needs.

Every key is read, known to change no answer, or switched off; ``finish`` refuses the others, so that nothing
that a file asks for is left undone in silence. Knows JSON and the keys that all files have; does not know
those of a family.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

from ocrquant.errors import ModelError

__all__ = ["IRRELEVANT", "Section"]

_NONE: Any = object()

_REASONS: Mapping[str, str] = {
    "names what the file is": "_name_or_path architectures auto_map base_model_name_or_path model_type name "
    "transformers_version _commit_hash",
    "for training": "attention_dropout attention_probs_dropout_prob classifier_dropout hidden_dropout_prob "
    "ignored_index initializer_range label2id id2label problem_type",
    "how some other program runs the model": "_attn_implementation _attn_implementation_autoset "
    "attn_implementation chunk_size_feed_forward dtype torch_dtype is_decoder output_attentions "
    "output_hidden_states return_dict use_cache use_flash_attention use_return_dict _experts_implementation",
    "a request decides, or generation_config.json": "diversity_penalty do_sample early_stopping "
    "length_penalty max_length min_length num_beam_groups num_beams num_return_sequences repetition_penalty "
    "temperature top_k top_p typical_p encoder_no_repeat_ngram_size no_repeat_ngram_size",
    "the processor reads it, or no page needs it": "bos_token_id eos_token_id pad_token_id sep_token_id "
    "decoder_start_token_id",
}
IRRELEVANT = frozenset(key for keys in _REASONS.values() for key in keys.split())
"""Keys of any section that change no answer of the engine, whatever they say."""


class Section:
    """A mapping whose missing and odd keys are refused by name.

    Args:
        data: The mapping.
        path: Where it stands, such as ``text_config``; empty for the file itself.
    """

    def __init__(self, data: Mapping[str, Any], path: str = "") -> None:
        self.data = data
        self._path = path
        self._read: set[str] = set()

    def finish(self, irrelevant: Collection[str] = ()) -> None:
        """Refuses every key that nobody has read, unless it is off: ``null``, false, zero or empty.

        Args:
            irrelevant: Keys that change no answer, besides those of all files.

        Raises:
            ModelError: There is one; names it.
        """
        for key, value in self.data.items():
            if value and key not in self._read and key not in irrelevant and key not in IRRELEVANT:
                raise self._refuse(key, "a setting that this model computes, or none", value)

    def raw(self, key: str) -> Any:
        """Whatever is there, ``None`` where nothing is."""
        self._read.add(key)
        return self.data.get(key)

    def section(self, key: str) -> Section:
        """A mapping below this one."""
        return Section(self._get(key, Mapping, _NONE), self._name(key))

    def integer(self, key: str, default: int = _NONE) -> int:
        """A whole number > 0."""
        value: int = self._get(key, int, default)
        if isinstance(value, bool) or value <= 0:
            raise self._refuse(key, "a whole number > 0", value)
        return value

    def token(self, key: str) -> int:
        """The id of a token."""
        value: int = self._get(key, int, _NONE)
        if isinstance(value, bool) or value < 0:
            raise self._refuse(key, "the id of a token", value)
        return value

    def number(self, key: str, default: float = _NONE) -> float:
        """A number > 0."""
        value = self._get(key, int | float, default)
        if isinstance(value, bool) or not 0 < value < math.inf:
            raise self._refuse(key, "a finite number > 0", value)
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """True or false; ``null`` counts as absent."""
        value: bool = self._get(key, bool, default)
        return value

    def integers(self, key: str, default: list[int]) -> list[int]:
        """A list of whole numbers."""
        value: list[int] = self._get(key, list, default)
        if not all(isinstance(one, int) and not isinstance(one, bool) for one in value):
            raise self._refuse(key, "whole numbers", value)
        return value

    def choice(self, key: str, allowed: tuple[str, ...], default: str = _NONE) -> str:
        """One of a few words; every other one asks for what this model does not compute."""
        value: str = self._get(key, str, default)
        if value not in allowed:
            raise self._refuse(key, " or ".join(allowed), value)
        return value

    def words(self, key: str, allowed: tuple[str, ...]) -> list[str]:
        """A list of a few words."""
        value: list[str] = self._get(key, list, _NONE)
        for word in value:
            if word not in allowed:
                raise self._refuse(key, " or ".join(allowed), word)
        return value

    def require(self, key: str, expected: object, default: object) -> None:
        """Refuses any other value of a key than the one that this model computes."""
        given = self.raw(key)
        given = default if given is None else given
        if given != expected:
            raise self._refuse(key, expected, given)

    def expect(self, condition: bool, key: str, expected: object, given: object) -> None:
        """Refuses a value that does not suit another one."""
        if not condition:
            raise self._refuse(key, expected, given)

    def _get(self, key: str, kind: Any, default: Any) -> Any:
        value = self.raw(key)
        if value is None:
            if default is _NONE:
                raise self._refuse(key, "a value", "none")
            return default
        if not isinstance(value, kind):
            raise self._refuse(key, getattr(kind, "__name__", kind), value)
        return value

    def _name(self, key: str) -> str:
        return f"{self._path}.{key}" if self._path else key

    def _refuse(self, key: str, expected: object, given: object) -> ModelError:
        fix = "take another model, or mend the file"
        return ModelError(f"{self._name(key)} in config.json", expected=expected, given=given, fix=fix)
