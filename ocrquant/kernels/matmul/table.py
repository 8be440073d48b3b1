"""Which implementation multiplies on a GPU, as data: the first rule that fits a product serves it.

A rule says what it takes and why it stands where it stands; `ocrquant doctor` prints them. Knows names and
sizes; loads no implementation and knows no tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Literal

from ocrquant import env
from ocrquant.kernels.matmul.arch import Arch

__all__ = ["FORMS", "RULES", "SMALL_ROWS", "Form", "Product", "Rule", "choose", "is_there", "refusals"]

Form = Literal["bf16 x bf16", "fp8 x fp8", "bf16 x fp8", "nvfp4 x nvfp4", "bf16 x nvfp4"]
"""What rows hold, then what the weight holds."""

FORMS: tuple[Form, ...] = ("bf16 x bf16", "fp8 x fp8", "bf16 x fp8", "nvfp4 x nvfp4", "bf16 x nvfp4")

Implementation = Literal[
    "mm", "scaled_mm rows", "scaled_mm sums", "scaled_mm blocks", "small_linear", "decode"
]
"""``mm``: torch.mm. ``scaled_mm ...``: torch's scaled products with scales of rows and channels, without
scales (they multiply the sums afterwards), or with block scales. ``small_linear``: that of `kernels.cuda`.
``decode``: codes become bf16, then mm."""

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
    """

    form: Form
    out_features: int
    in_features: int
    is_wide: bool = False
    is_small: bool = False


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
        module: Python package that it needs; empty for torch alone.
        small_only: Whether it is for few rows.
        by_cuda: Whether it is one of `kernels.cuda`, which run where ``OCRQUANT_KERNELS=cuda`` asks for them.
    """

    form: Form
    implementation: Implementation
    reason: str
    needs: Literal["", "fp8", "nvfp4"] = ""
    multiples: tuple[int, int] = (1, 1)
    narrow_only: bool = False
    module: str = ""
    small_only: bool = False
    by_cuda: bool = False


RULES: tuple[Rule, ...] = (
    Rule(form="bf16 x bf16", implementation="mm", reason="cuBLAS sums in float32 and rounds once"),
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


@cache
def is_there(module: str) -> bool:
    """Whether a Python package can be found; nothing is loaded."""
    return not module or find_spec(module) is not None


def _needs_met(needs: str, arch: Arch) -> bool:
    return {"": True, "fp8": arch.has_fp8, "nvfp4": arch.has_nvfp4}[needs]


_OBSTACLES: Sequence[Callable[[Rule, Product, Arch], str]] = (
    lambda rule, _, arch: (
        "" if _needs_met(rule.needs, arch) else f"{arch.name} has no {rule.needs} matrix units"
    ),
    lambda rule, _p, _a: "" if is_there(rule.module) else f"{rule.module} is not installed",
    lambda rule, _, arch: _cuda_obstacle(arch) if rule.by_cuda else "",
    lambda rule, product, _: f"for {SMALL_ROWS} rows at most" if rule.small_only > product.is_small else "",
    lambda rule, product, _: "writes bf16 only" if rule.narrow_only and product.is_wide else "",
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
    return _chosen(product, arch, env.kernels())


@cache
def _chosen(product: Product, arch: Arch, kernels: str) -> Rule:
    """Kept by what the answer depends on, the variable included."""
    del kernels
    return next(rule for rule in RULES if rule.form == product.form and not obstacle(rule, product, arch))


def refusals(product: Product, arch: Arch) -> Iterator[tuple[Rule, str]]:
    """The rules before the chosen one, and why they do not serve."""
    for rule in RULES:
        if rule.form == product.form:
            found = obstacle(rule, product, arch)
            if not found:
                return
            yield rule, found
