"""What is wrong with a checkpoint: findings with stable codes, how bad each is, and what it leads to.

Knows the table of codes and how findings are shown. Does not know how any of them is found.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from types import MappingProxyType

from ocrquant.errors import VerificationError

__all__ = ["CODES", "Code", "Finding", "Findings", "Severity"]

_SHOWN = 5
"""Findings of one code that are printed; the rest are counted. All of them are in the JSON."""


class Severity(StrEnum):
    """How bad a finding is: an error is wrong output or no output, a warning may be."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Code:
    """One kind of finding.

    Attributes:
        severity: How bad it is.
        leads_to: What a person meets who serves such a checkpoint.
    """

    severity: Severity
    leads_to: str


_TEXTS: Mapping[Severity, Mapping[str, str]] = {
    Severity.ERROR: {
        # Files
        "shard-missing": "a server starts with zeros or garbage in place of the missing weights",
        "shard-damaged": "the weights cannot be read",
        "index-names-absent-tensor": "a server waits for a tensor that is in no file",
        "index-misses-tensor": "the tensor is never loaded, in silence",
        "processor-missing": "pages cannot be prepared: the server does not start, or reads text only",
        "tokenizer-truncates": "prompts with an image are cut to this many tokens, and requests fail",
        # What the configuration declares
        "quantization-config-missing": "codes are taken for weights",
        "configurations-differ": "some servers follow one file and some the other",
        "declared-twice": "which scheme a server takes depends on the order in the file",
        "declared-not-stored": "a server looks for codes where there are plain weights",
        "stored-not-declared": "codes are taken for weights: garbled output",
        "sparsity-declared": "the server stops, or takes packed weights for whole ones",
        # Tensors
        "tensor-missing": "the scale stays what memory held: garbled output",
        "tensor-undeclared": "the server stops with a KeyError, or drops the tensor in silence",
        "tensor-shape": "an assertion while loading, or scales of the wrong rows",
        "tensor-dtype": "bytes are read as other numbers",
        "width-unsuited": "no kernel takes this width: a crash, or garbled output",
        # Values
        "scale-not-finite": "NaN in every answer",
        "scale-not-positive": "a zero scale gives zeros or NaN, a negative one turns signs",
        "global-scales-differ": "a server keeps one scale for the fused product and decodes the rest wrongly",
        # Names, as a server matches them
        "fused-shards-disagree": "the server refuses the checkpoint, or fills half of the fused weight",
        "experts-disagree": "the server refuses the checkpoint: it has one method for the experts of a layer",
        "name-not-matched": "the server loads codes as plain weights, or drops them: garbled output",
        "name-matched-wrongly": "the server expects another scheme there, and its tensors",
        "target-cannot-serve": "this server does not load the checkpoint, or loads it wrongly",
        # What surrounds the linears
        "tied-flags-differ": "some readers leave the head without a weight",
        "tied-head-quantized": "the head is an alias of the embedding: its codes are ignored or crash",
        "cache-scale-misplaced": "the server stops while loading, or drops the scale",
        "cache-scheme-unknown": "the server stops while loading",
        "cache-not-e4m3": "keys and values lose their mantissa: garbled output",
        # Plan
        "plan-differs": "what was judged is not what is served",
        "plan-cache-differs": "the cache that was judged is not the one that is served",
        "size-differs": "the checkpoint is not as large as the plan says",
        # Against the source
        "file-missing": "the server does not start, or puts prompts together in another way",
        "file-changed": "tokens, prompts or pixels are not those that the model was trained with",
        "source-tensor-missing": "the server has no weight there",
        "untouched-changed": "a tensor that no plan touches is another one",
        "codes-not-finite": "NaN in every answer",
        "error-too-large": "the weight is not that of the source: a wrong scale, order or fold",
        "rows-vanished": "outputs that the source has are always zero",
        "logits-not-finite": "no text, or one character over and over",
        "logits-far-off": "answers that have little to do with those of the source",
    },
    Severity.WARNING: {
        "shard-unlisted": "servers that read every file load tensors that the index leaves out",
        "index-total-size": "memory and progress are computed from a wrong number",
        "weights-in-other-form": "a server may load these weights in place of the quantized ones",
        "configuration-incomplete": "servers that read only the other file do not see it quantized",
        "scheme-unknown": "what this scheme needs could not be checked",
        "target-matches-nothing": "layers that were to be quantized, or to be left alone, are not",
        "tensor-scales-differ": "a server rounds the fused weight a second time, to the larger scale",
        "vision-name-not-covered": "readers that name the vision side so take it for quantized",
        "draft-name-not-covered": "the draft head is taken for quantized, and no guess is accepted",
        "match-depends-on-version": "one version of the server reads it, another loads garbage",
        "draft-tensors-missing": "speculative decoding accepts nothing, or does not start",
        "positions-not-interleaved": "vLLM gives image tokens other positions: worse answers",
        "cache-scales-incomplete": "layers without a scale use 1.0: worse answers with long contexts",
        "cache-not-declared": "the scales are there and are not used",
        "file-written-anew": "the content is the same today; readers of another version may differ",
        "tensor-added": "a server that knows each tensor of the model stops at this one",
    },
    Severity.NOTE: {
        "not-quantized": "the checkpoint is as large and as fast as the original",
        "server-not-modelled": "names were not matched as a server does it",
        "logits-not-compared": "whether the text is right was not looked at",
    },
}

CODES: Mapping[str, Code] = MappingProxyType(
    {code: Code(severity, text) for severity, texts in _TEXTS.items() for code, text in texts.items()}
)
"""Kinds of findings; a code never changes its meaning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong.

    Attributes:
        code: Its kind, of ``CODES``.
        severity: How bad it is.
        what: The file, tensor or key.
        expected: What would have been right.
        given: What was found.
        fix: What to do.
        leads_to: What a person meets who serves it as it is.
    """

    code: str
    severity: Severity
    what: str
    expected: str
    given: str
    fix: str
    leads_to: str

    def __str__(self) -> str:
        return f"{self.what}: expected {self.expected}, got {self.given}; {self.fix}"


@dataclass(slots=True)
class Findings:
    """All findings on a checkpoint, in the order in which they were found.

    Attributes:
        folder: The checkpoint.
        items: The findings.
        facts: What was looked at, in words: name -> value.
    """

    folder: str
    items: list[Finding] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)

    def add(self, code: str, what: object, *, expected: object, given: object, fix: str) -> None:
        """Adds a finding of a kind."""
        kind = CODES[code]
        self.items.append(
            Finding(
                code=code,
                severity=kind.severity,
                what=str(what),
                expected=str(expected),
                given=str(given),
                fix=fix,
                leads_to=kind.leads_to,
            )
        )

    def codes(self) -> set[str]:
        """The kinds that were found."""
        return {item.code for item in self.items}

    def count(self, severity: Severity) -> int:
        """Findings of a severity."""
        return sum(item.severity is severity for item in self.items)

    def raise_for_errors(self) -> None:
        """Ends with an exit code of its own where there is an error.

        Raises:
            VerificationError: Some finding is an error.
        """
        if errors := [item for item in self.items if item.severity is Severity.ERROR]:
            raise VerificationError(
                self.folder,
                expected="no errors",
                given=f"{len(errors)}, the first one {errors[0].code} in {errors[0].what}",
                fix="see the findings",
            )

    def to_json(self) -> dict[str, object]:
        """Everything, as JSON values."""
        return {
            "checkpoint": self.folder,
            "facts": self.facts,
            "counts": {str(severity): self.count(severity) for severity in Severity},
            "findings": [asdict(item) for item in self.items],
        }

    def render(self) -> str:
        """A text for people: facts, then the findings of each kind, worst first."""
        lines = [self.folder, *(f"  {name}: {value}" for name, value in self.facts.items()), ""]
        for severity in Severity:
            kinds = dict.fromkeys(item.code for item in self.items if item.severity is severity)
            for code in kinds:
                lines += _of_one_kind(code, [item for item in self.items if item.code == code])
        counts = ", ".join(f"{self.count(s)} {s}{'s' * (self.count(s) != 1)}" for s in Severity)
        return "\n".join([*lines, counts])


def _of_one_kind(code: str, items: Iterable[Finding]) -> list[str]:
    found = list(items)
    lines = [f"{found[0].severity} {code} ({len(found)}): {found[0].leads_to}"]
    lines += [f"  {item}" for item in found[:_SHOWN]]
    if len(found) > _SHOWN:
        lines.append(f"  and {len(found) - _SHOWN} more")
    return lines
