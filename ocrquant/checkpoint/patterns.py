"""Patterns that find the same linears under the names that different readers give them.

A reader may put the decoder under another prefix (``model.language_model.layers.0``, ``model.layers.0``,
``language_model.model.layers.0``), so patterns are anchored at the end and at a dot in front of the layers.
Knows names. Does not know formats.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from ocrquant.errors import ModelError
from ocrquant.formats import Precision

__all__ = ["LinearNames", "matches"]

_ANY_PREFIX = r"(?:.*\.)?"


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearNames:
    """The linears of a model and what a plan does with them.

    Attributes:
        precisions: Precision by name of every linear of the decoder and its head, bf16 ones included.
        block_prefix: Name of the module that holds the decoder's layers, such as
            ``model.language_model.layers``.
        untouched: Names of all other linears: of the vision side and of multi-token-prediction heads.
        renamed: Modules of the vision side by the names that readers give them who call them differently.
    """

    precisions: Mapping[str, Precision]
    block_prefix: str
    untouched: Collection[str]
    renamed: Collection[str] = ()

    def targets(self, precision: Precision) -> list[str]:
        """Patterns that match the decoder's linears of a precision."""
        names = [name for name, given in self.precisions.items() if given is precision]
        return _patterns(names, self.block_prefix)

    def ignored(self) -> list[str]:
        """What stays in bf16: every name, then patterns for readers with other prefixes."""
        kept = [name for name, given in self.precisions.items() if given is Precision.BF16]
        known = dict.fromkeys(_last(root) for root in (*self.roots(), *self.renamed))
        roots = [rf"re:{_ANY_PREFIX}{re.escape(root)}\..*" for root in known]
        return [*kept, *sorted(self.untouched), *roots, *_patterns(kept, self.block_prefix)]

    def check(self) -> None:
        """Makes sure that the patterns say what the plan says, under each prefix that readers use.

        Raises:
            ModelError: Some name is matched wrongly.
        """
        ignored = self.ignored()
        quantized = {precision: self.targets(precision) for precision in (Precision.FP8, Precision.NVFP4)}
        expected = {**dict.fromkeys(self.untouched, Precision.BF16), **self.precisions}
        for name, precision in expected.items():
            for alias in self._aliases(name):
                found = {p for p, targets in quantized.items() if matches(alias, targets)}
                is_ignored = matches(alias, ignored)
                if (Precision.BF16 if is_ignored else precision) is not precision or (
                    not is_ignored and found != {precision}
                ):
                    raise ModelError(
                        name,
                        expected=f"a name that tells {precision} linears from all others",
                        given=f"{alias}, which patterns of {', '.join(sorted(found)) or 'bf16'} match",
                        fix="keep this group and those of the same names in bf16",
                    )

    def roots(self) -> list[str]:
        """Shortest prefixes of the untouched names that no linear of the decoder has."""
        decoder = {prefix for name in self.precisions for prefix in _prefixes(name)}
        roots = {next((p for p in _prefixes(name) if p not in decoder), name) for name in self.untouched}
        return sorted(roots)

    def _aliases(self, name: str) -> set[str]:
        """The name under the prefixes that readers use."""
        stem = self.block_prefix
        if name.startswith(f"{stem}."):
            tail = f"{_last(stem)}{name.removeprefix(stem)}"
        else:
            root = next((root for root in self.roots() if name.startswith(f"{root}.")), name)
            tail = f"{_last(root)}{name.removeprefix(root)}"
        return {name, tail, f"model.{tail}", f"language_model.{tail}", f"language_model.model.{tail}"}


def matches(name: str, targets: Iterable[str]) -> bool:
    """Whether a module's name is among targets, by the rule of compressed-tensors and of vLLM.

    A target is a name, or after ``re:`` a pattern that matches from the start of the name.
    """
    return any(
        re.match(target[3:], name) is not None if target.startswith("re:") else target == name
        for target in targets
    )


def _patterns(names: Iterable[str], block_prefix: str) -> list[str]:
    """One pattern for the linears that have parent and layers in common."""
    blocks: dict[str, list[str]] = {}
    others = []
    for name in names:
        if name.startswith(f"{block_prefix}."):
            block, _, tail = name.removeprefix(f"{block_prefix}.").partition(".")
            blocks.setdefault(tail, []).append(block)
        else:
            others.append(name)
    leaves: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for tail, numbers in blocks.items():
        parent, _, leaf = tail.rpartition(".")
        leaves.setdefault((parent, tuple(numbers)), []).append(leaf)
    stem = re.escape(_last(block_prefix))
    patterns = []
    for (parent, members), ends in leaves.items():
        inner = re.escape(f"{parent}." if parent else "")
        patterns.append(rf"re:{_ANY_PREFIX}{stem}\.{_one_of(members)}\.{inner}{_one_of(ends)}$")
    return patterns + [rf"re:{_ANY_PREFIX}{re.escape(_last(name))}$" for name in others]


def _one_of(words: Iterable[str]) -> str:
    escaped = [re.escape(word) for word in words]
    return escaped[0] if len(escaped) == 1 else f"(?:{'|'.join(escaped)})"


def _prefixes(name: str) -> list[str]:
    """``a``, ``a.b``, ``a.b.c`` of ``a.b.c``."""
    steps = name.split(".")
    return [".".join(steps[: end + 1]) for end in range(len(steps))]


def _last(name: str) -> str:
    return name.rpartition(".")[2]
