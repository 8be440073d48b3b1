"""Rows as linears read them: plain, in FP8 codes, in NVFP4 codes, or several at once.

What producers (norms, gates, SiLU times up) write and `kernels.linear` reads. Knows shapes and dtypes.
Computes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from ocrquant.errors import ShapeError
from ocrquant.formats.precision import NVFP4_BLOCK_SIZE
from ocrquant.formats.scale_layout import swizzled_size
from ocrquant.kernels.contract import Contract

__all__ = ["Operand", "OperandSpec"]


@dataclass(frozen=True, slots=True, eq=False)
class OperandSpec:
    """Which forms of its rows a producer writes.

    Attributes:
        plain: Whether unquantized rows are wanted.
        fp8: Whether E4M3 codes with a scale by token are wanted.
        nvfp4_encode_scale: float32 [1], the calibrated global scale of the reader; None where no NVFP4 codes
            are wanted.
        fp8_decode_scale: float32 [1], the calibrated scale of the reader of FP8 codes; None for a scale by
            token.
        swizzles: Whether NVFP4 block scales are wanted in the 128x4 layout (``formats.scale_layout``) instead
            of row by row.
    """

    plain: bool = False
    fp8: bool = False
    nvfp4_encode_scale: Tensor | None = None
    fp8_decode_scale: Tensor | None = None
    swizzles: bool = False

    def allocate(self, rows: int, width: int, dtype: torch.dtype, device: torch.device) -> Operand:
        """An operand of these forms, not initialised.

        Raises:
            ShapeError: NVFP4 is wanted and the width is not a multiple of 16.
        """

        def empty(shape: tuple[int, ...], kind: torch.dtype) -> Tensor:
            return torch.empty(shape, dtype=kind, device=device)

        has_nvfp4 = self.nvfp4_encode_scale is not None
        by_token = self.fp8 and self.fp8_decode_scale is None
        if has_nvfp4 and width % NVFP4_BLOCK_SIZE:
            raise ShapeError(
                "NVFP4 operand",
                expected=f"a width that is a multiple of {NVFP4_BLOCK_SIZE}",
                given=width,
                fix="keep the linear in another precision",
            )
        byte, blocks = torch.uint8, width // NVFP4_BLOCK_SIZE
        size = swizzled_size(rows, blocks)
        return Operand(
            plain=empty((rows, width), dtype) if self.plain else None,
            fp8=empty((rows, width), byte) if self.fp8 else None,
            fp8_scale=empty((rows,), torch.float32) if by_token else None,
            fp8_static=self.fp8_decode_scale if self.fp8 else None,
            nvfp4=empty((rows, width // 2), byte) if has_nvfp4 else None,
            nvfp4_scale=empty((rows, blocks), byte) if has_nvfp4 and not self.swizzles else None,
            nvfp4_swizzled=empty((size,), byte) if has_nvfp4 and self.swizzles else None,
            encode_scale=self.nvfp4_encode_scale,
        )


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Operand:
    """The forms of R rows of one width.

    Attributes:
        plain: [R, w], the activation dtype.
        fp8: uint8 [R, w], E4M3 codes.
        fp8_scale: float32 [R], what each token's codes are multiplied by; written.
        fp8_static: float32 [1], the calibrated scale that stands for it; read.
        nvfp4: uint8 [R, w / 2], E2M1 codes, the even column in the low nibble.
        nvfp4_scale: uint8 [R, w / 16], E4M3 block scales, row-major.
        nvfp4_swizzled: uint8, the same in the 128x4 layout, its padding written, instead of `nvfp4_scale`.
        encode_scale: float32 [1], the global scale that the NVFP4 codes were made with.
    """

    plain: Tensor | None = None
    fp8: Tensor | None = None
    fp8_scale: Tensor | None = None
    fp8_static: Tensor | None = None
    nvfp4: Tensor | None = None
    nvfp4_scale: Tensor | None = None
    nvfp4_swizzled: Tensor | None = None
    encode_scale: Tensor | None = None

    @property
    def is_for_gpu(self) -> bool:
        """Whether it has a form that the compiled kernels for a CPU do not write."""
        return self.fp8_static is not None or self.nvfp4_swizzled is not None

    def rows(self, count: int) -> Operand:
        """The first `count` rows."""
        parts = {f.name: getattr(self, f.name) for f in fields(self)}
        shared = ("encode_scale", "fp8_static", "nvfp4_swizzled")
        cut = {n: t if t is None or n in shared else t[:count] for n, t in parts.items()}
        if self.nvfp4_swizzled is not None:
            assert self.nvfp4 is not None
            size = swizzled_size(count, 2 * self.nvfp4.shape[1] // NVFP4_BLOCK_SIZE)
            cut["nvfp4_swizzled"] = self.nvfp4_swizzled[:size]
        return Operand(**cut)

    def check(self, contract: Contract, name: str = "out", dtype: torch.dtype | None = None) -> None:
        """Checks every form against the symbols R and w of a contract; `dtype` is that of the plain form.

        Raises:
            ShapeError: A form has another shape or dtype, a part of a form is missing, or there is none.
        """
        if self.plain is not None:
            contract.tensor(f"{name}.plain", self.plain, "R w", dtype)
        self._check_fp8(contract, name)
        self._check_nvfp4(contract, name)
        is_empty = self.plain is None and self.fp8 is None and self.nvfp4 is None
        contract.require(not is_empty, name, "at least one form", "none")

    def _check_fp8(self, contract: Contract, name: str) -> None:
        if self.fp8 is None:
            return
        contract.tensor(f"{name}.fp8", self.fp8, "R w", torch.uint8)
        num_scales = (self.fp8_scale is not None) + (self.fp8_static is not None)
        contract.require(num_scales == 1, f"{name}.fp8_scale", "it or fp8_static", f"{num_scales} of them")
        if self.fp8_scale is not None:
            contract.tensor(f"{name}.fp8_scale", self.fp8_scale, "R", torch.float32)
        if self.fp8_static is not None:
            contract.tensor(f"{name}.fp8_static", self.fp8_static, "1", torch.float32)

    def _check_nvfp4(self, contract: Contract, name: str) -> None:
        if self.nvfp4 is None:
            return
        num_scales = (self.nvfp4_scale is not None) + (self.nvfp4_swizzled is not None)
        complete = num_scales == 1 and self.encode_scale is not None
        given = (
            f"{num_scales} scales, encode_scale {'' if self.encode_scale is not None else 'not '}among them"
        )
        expected = "encode_scale, and nvfp4_scale or nvfp4_swizzled"
        contract.require(complete, f"{name}.nvfp4_scale and encode_scale", expected, given)
        assert self.encode_scale is not None
        contract.tensor(f"{name}.nvfp4", self.nvfp4, "R half", torch.uint8)
        contract.tensor(f"{name}.encode_scale", self.encode_scale, "1", torch.float32)
        sizes = contract.sizes
        width = sizes.setdefault("w", 2 * sizes["half"])
        if self.nvfp4_scale is not None:
            contract.tensor(f"{name}.nvfp4_scale", self.nvfp4_scale, "R blocks", torch.uint8)
            blocks = sizes["blocks"]
        else:
            assert self.nvfp4_swizzled is not None
            blocks = width // NVFP4_BLOCK_SIZE
            size = swizzled_size(sizes["R"], blocks)
            contract.tensor(f"{name}.nvfp4_swizzled", self.nvfp4_swizzled, f"{size}", torch.uint8)
        contract.require(
            (width, width) == (2 * sizes["half"], NVFP4_BLOCK_SIZE * blocks),
            f"{name}.nvfp4",
            f"[R, {width} / 2] with scales [R, {width} / {NVFP4_BLOCK_SIZE}]",
            f"{sizes['half']} and {blocks} columns",
        )
