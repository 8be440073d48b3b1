"""``config.json`` of a model folder with and without what a format says, every other byte as it was.

Knows JSON text. Does not know what a format says.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ocrquant.errors import ModelError

__all__ = ["plain_config", "with_quantization_config"]

_KEY = "quantization_config"
_TIED = "tie_word_embeddings"


def with_quantization_config(
    config: bytes, quantization_config: Mapping[str, object] | None, *, tied_head: bool
) -> bytes:
    """A ``config.json`` with one key more; every other byte of it stays as it is.

    Except where it contradicts itself: transformers reads outside of ``text_config`` whether the head shares
    the weight of the embedding, vLLM inside, and a head that one of them does not find there stays without a
    weight.

    Args:
        config: The file without that key, as ``plain_config`` gives it.
        quantization_config: Value of the key; None adds none.
        tied_head: Whether the head shares that weight.
    """
    text = config.decode("utf-8")
    if tied_head and (mended := _with_ties(json.loads(text))) is not None:
        text = json.dumps(mended, indent=2, ensure_ascii=False) + "\n"
    if quantization_config is None:
        return text.encode("utf-8")
    last_brace = text.rindex("}")
    head, tail = text[:last_brace].rstrip(), text[last_brace:]
    comma = "" if head.endswith("{") else ","
    return f"{head}{comma}{_entry(quantization_config)}\n{tail}".encode()


def plain_config(folder: Path) -> bytes:
    """The ``config.json`` of a folder without the key, whether it had one or not.

    What ``with_quantization_config`` added is cut out of the text. What another program wrote in its own
    style leaves an equal object in another style.

    Raises:
        ModelError: The file is missing or no JSON object.
    """
    path = folder / "config.json"
    try:
        data = path.read_bytes()
        text = data.decode("utf-8")
        config = json.loads(text)
    except OSError as error:
        raise ModelError(path, expected="a readable file", given=error.strerror) from error
    except ValueError as error:
        raise _unusable(path, error) from error
    if not isinstance(config, dict):
        raise _unusable(path, type(config).__name__)
    if _KEY not in config:
        return data
    entry = f"{_entry(config[_KEY])}\n}}"
    before, found, after = text.rpartition(entry)
    if found and not after.strip():
        return f"{before.removesuffix(',')}\n}}{after}".encode()
    del config[_KEY]
    return (json.dumps(config, indent=2, ensure_ascii=False) + "\n").encode()


def _entry(quantization_config: object) -> str:
    value = json.dumps(quantization_config, indent=2, sort_keys=True, ensure_ascii=False)
    return f'\n  "{_KEY}": ' + value.replace("\n", "\n  ")


def _with_ties(config: dict[str, Any]) -> dict[str, Any] | None:
    """The object with the flag set wherever a reader looks for it; None where it is already."""
    # The part with the vocabulary is the text side, whatever a family calls it.
    texts = [part for part in config.values() if isinstance(part, dict) and "vocab_size" in part]
    places = [config, *texts]
    if all(place.get(_TIED) is True for place in places):
        return None
    for place in places:
        place[_TIED] = True
    return config


def _unusable(path: Path, given: object) -> ModelError:
    return ModelError(path, expected="a JSON object", given=given, fix="take the original model")
