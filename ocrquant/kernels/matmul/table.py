"""Which implementation multiplies on a GPU, as data: the first rule that fits a product serves it.

A rule says what it takes and why it stands where it stands; `ocrquant doctor` prints them. Knows names and
sizes; loads no implementation and knows no tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

from ocrquant import env
from ocrquant.kernels import libraries
from ocrquant.kernels.libraries import LibraryName
from ocrquant.kernels.matmul.arch import Arch

__all__ = ["FORMS", "RULES", "SMALL_ROWS", "Form", "Product", "Rule", "choose", "obstacle", "refusals"]

Form = Literal["bf16 x bf16", "fp8 x fp8", "bf16 x fp8", "nvfp4 x nvfp4", "bf16 x nvfp4"]
"""What rows hold, then what the weight holds."""

FORMS: tuple[Form, ...] = ("bf16 x bf16", "fp8 x fp8", "bf16 x fp8", "nvfp4 x nvfp4", "bf16 x nvfp4")

Implementation = Literal[
    "mm",
    "scaled_mm rows",
    "scaled_mm sums",
    "scaled_mm blocks",
    "flashinfer bmm_fp8",
    "flashinfer mm_fp4",
    "small_linear",
    "decode",
]
"""``mm``: torch.mm. ``scaled_mm ...``: torch's scaled products with scales of rows and channels, without
scales (they multiply the sums afterwards), or with block scales. ``flashinfer ...``: that library's.
``small_linear``: that of `kernels.cuda`. ``decode``: codes become bf16, then mm."""

SMALL_ROWS = 16
_CUDA_ARCHES = ("sm_90a", "sm_100a")
_LIBRARY_MULTIPLE = 16
_PACKED_MULTIPLE = 32


@dataclass(frozen=True, slots=True)
class Product:
    """The sizes that a rule looks at.

    Attributes:
        form: What is multiplied.
        out_features: Rows of the weight.
        in_features: Columns of the weight.
        is_wide: Whether result or bias are float32 rather than bf16.
        is_small: Whether there are at most `SMALL_ROWS` rows.
        is_uniform: Whether each side has one scale beside those of blocks: for NVFP4, parts of a merged
            weight that share theirs; for FP8, a scale for all rows and one for all channels.
        has_bias: Whether a bias is added.
    """

    form: Form
    out_features: int
    in_features: int
    is_wide: bool = False
    is_small: bool = False
    is_uniform: bool = False
    has_bias: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One line of the table.

    Attributes:
        form: What it multiplies.
        implementation: By what.
        reason: Why, for a reader.
        needs: Property of the architecture that it needs; empty for none.
        multiples: What outputs and inputs must be multiples of.
        narrow_only: Whether it adds and writes bf16 only.
        library: What it calls besides torch; None for nothing.
        small_only: Whether it is for few rows.
        uniform_only: Whether it takes one scale a side and no more.
        no_bias: Whether it adds no bias before it rounds.
        by_cuda: Whether it is one of `kernels.cuda`, which run where ``OCRQUANT_KERNELS=cuda`` asks for them.
    """

    form: Form
    implementation: Implementation
    reason: str
    needs: Literal["", "fp8", "nvfp4"] = ""
    multiples: tuple[int, int] = (1, 1)
    narrow_only: bool = False
    library: LibraryName | None = None
    small_only: bool = False
    uniform_only: bool = False
    no_bias: bool = False
    by_cuda: bool = False

    @property
    def takes(self) -> str:
        """The shapes that it serves, for a reader; empty for all."""
        outputs, inputs = self.multiples
        limits = {
            f"outputs in multiples of {outputs}": outputs > 1,
            f"inputs in multiples of {inputs}": inputs > 1,
            f"{SMALL_ROWS} rows at most": self.small_only,
            "bf16 results": self.narrow_only,
            "one scale a side": self.uniform_only,
            "no bias": self.no_bias,
        }
        return ", ".join(limit for limit, holds in limits.items() if holds)


RULES: tuple[Rule, ...] = (
    Rule(form="bf16 x bf16", implementation="mm", reason="cuBLAS sums in float32 and rounds once"),
    Rule(
        form="fp8 x fp8",
        implementation="flashinfer bmm_fp8",
        needs="fp8",
        multiples=(_LIBRARY_MULTIPLE, _LIBRARY_MULTIPLE),
        library="flashinfer",
        narrow_only=True,
        uniform_only=True,
        no_bias=True,
        reason="asked for; a plan of cuDNN with one scale a side; not measured against torch",
    ),
    Rule(
        form="fp8 x fp8",
        implementation="scaled_mm rows",
        needs="fp8",
        multiples=(_LIBRARY_MULTIPLE, _LIBRARY_MULTIPLE),
        narrow_only=True,
        reason="cuBLASLt or CUTLASS apply the scales of row and channel to the sum: one kernel",
    ),
    Rule(
        form="fp8 x fp8",
        implementation="scaled_mm sums",
        needs="fp8",
        multiples=(_LIBRARY_MULTIPLE, _LIBRARY_MULTIPLE),
        reason="scaled rows give bf16 only: float32 sums first, then the scales",
    ),
    Rule(form="fp8 x fp8", implementation="decode", reason="every E4M3 number is one of bf16"),
    Rule(
        form="bf16 x fp8",
        implementation="small_linear",
        multiples=(1, _LIBRARY_MULTIPLE),
        small_only=True,
        by_cuda=True,
        reason="a few rows cost the time in which the codes come from memory, half of bf16's",
    ),
    Rule(form="bf16 x fp8", implementation="decode", reason="bf16 rows need a bf16 weight"),
    Rule(
        form="nvfp4 x nvfp4",
        implementation="flashinfer mm_fp4",
        needs="nvfp4",
        multiples=(_PACKED_MULTIPLE, _PACKED_MULTIPLE),
        library="flashinfer",
        narrow_only=True,
        uniform_only=True,
        no_bias=True,
        reason="asked for; a plan of cuDNN with swizzled block scales; not measured against torch",
    ),
    Rule(
        form="nvfp4 x nvfp4",
        implementation="scaled_mm blocks",
        needs="nvfp4",
        multiples=(_LIBRARY_MULTIPLE, _PACKED_MULTIPLE),
        reason="cuBLASLt multiplies E2M1 with swizzled block scales: one kernel, four times bf16's peak",
    ),
    Rule(
        form="nvfp4 x nvfp4",
        implementation="decode",
        reason="a code times its block scale is a bf16 number, so both sides multiply exactly in bf16",
    ),
    Rule(
        form="bf16 x nvfp4",
        implementation="small_linear",
        multiples=(1, _PACKED_MULTIPLE),
        small_only=True,
        by_cuda=True,
        reason="a few rows cost the time in which the codes come from memory, 0.28 of bf16's",
    ),
    Rule(form="bf16 x nvfp4", implementation="decode", reason="bf16 rows need a bf16 weight"),
)
"""Tried in this order."""


def _needs_met(needs: str, arch: Arch) -> bool:
    return {"": True, "fp8": arch.has_fp8, "nvfp4": arch.has_nvfp4}[needs]


_OBSTACLES: Sequence[Callable[[Rule, Product, Arch], str]] = (
    lambda rule, _, arch: (
        "" if _needs_met(rule.needs, arch) else f"{arch.name} has no {rule.needs} matrix units"
    ),
    lambda rule, _p, _a: "" if rule.library is None else libraries.obstacle(rule.library),
    lambda rule, _, arch: _cuda_obstacle(arch) if rule.by_cuda else "",
    lambda rule, product, _: f"for {SMALL_ROWS} rows at most" if rule.small_only > product.is_small else "",
    lambda rule, product, _: "writes bf16 only" if rule.narrow_only and product.is_wide else "",
    lambda rule, product, _: "takes one scale a side" if rule.uniform_only > product.is_uniform else "",
    lambda rule, product, _: "adds no bias" if rule.no_bias and product.has_bias else "",
    lambda rule, product, _: _not_multiple("outputs", product.out_features, rule.multiples[0]),
    lambda rule, product, _: _not_multiple("inputs", product.in_features, rule.multiples[1]),
)


def _cuda_obstacle(arch: Arch) -> str:
    if env.kernels() != "cuda":
        return "OCRQUANT_KERNELS is not cuda"
    return "" if arch.name in _CUDA_ARCHES else f"not compiled for {arch.name}"


def _not_multiple(what: str, size: int, multiple: int) -> str:
    return f"{size} {what} are no multiple of {multiple}" if size % multiple else ""


def obstacle(rule: Rule, product: Product, arch: Arch) -> str:
    """Why a rule does not serve a product; empty where it does."""
    return next((found for ask in _OBSTACLES if (found := ask(rule, product, arch))), "")


def choose(product: Product, arch: Arch) -> Rule:
    """The first rule that serves a product; the last one of every form serves all."""
    return _chosen(product, arch, env.kernels(), env.libraries())


@cache
def _chosen(product: Product, arch: Arch, kernels: str, asked: frozenset[str]) -> Rule:
    """Kept by what the answer depends on, the variables included."""
    del kernels, asked
    return next(rule for rule in RULES if rule.form == product.form and not obstacle(rule, product, arch))


def refusals(product: Product, arch: Arch) -> Iterator[tuple[Rule, str]]:
    """The rules before the chosen one, and why they do not serve."""
    for rule in RULES:
        if rule.form == product.form:
            found = obstacle(rule, product, arch)
            if not found:
                return
            yield rule, found
