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
    """

    plain: bool = False
    fp8: bool = False
    nvfp4_encode_scale: Tensor | None = None

    def allocate(self, rows: int, width: int, dtype: torch.dtype, device: torch.device) -> Operand:
        """An operand of these forms, not initialised.

        Raises:
            ShapeError: NVFP4 is wanted and the width is not a multiple of 16.
        """

        def empty(shape: tuple[int, ...], kind: torch.dtype) -> Tensor:
            return torch.empty(shape, dtype=kind, device=device)

        has_nvfp4 = self.nvfp4_encode_scale is not None
        if has_nvfp4 and width % NVFP4_BLOCK_SIZE:
            raise ShapeError(
                "NVFP4 operand",
                expected=f"a width that is a multiple of {NVFP4_BLOCK_SIZE}",
                given=width,
                fix="keep the linear in another precision",
            )
        byte = torch.uint8
        return Operand(
            plain=empty((rows, width), dtype) if self.plain else None,
            fp8=empty((rows, width), byte) if self.fp8 else None,
            fp8_scale=empty((rows,), torch.float32) if self.fp8 else None,
            nvfp4=empty((rows, width // 2), byte) if has_nvfp4 else None,
            nvfp4_scale=empty((rows, width // NVFP4_BLOCK_SIZE), byte) if has_nvfp4 else None,
            encode_scale=self.nvfp4_encode_scale,
        )


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Operand:
    """The forms of R rows of one width.

    Attributes:
        plain: [R, w], the activation dtype.
        fp8: uint8 [R, w], E4M3 codes.
        fp8_scale: float32 [R], what each token's codes are multiplied by.
        nvfp4: uint8 [R, w / 2], E2M1 codes, the even column in the low nibble.
        nvfp4_scale: uint8 [R, w / 16], E4M3 block scales, row-major.
        encode_scale: float32 [1], the global scale that the NVFP4 codes were made with.
    """

    plain: Tensor | None = None
    fp8: Tensor | None = None
    fp8_scale: Tensor | None = None
    nvfp4: Tensor | None = None
    nvfp4_scale: Tensor | None = None
    encode_scale: Tensor | None = None

    def rows(self, count: int) -> Operand:
        """The first `count` rows."""
        parts = {f.name: getattr(self, f.name) for f in fields(self)}
        cut = {n: t if t is None or n == "encode_scale" else t[:count] for n, t in parts.items()}
        return Operand(**cut)

    def check(self, contract: Contract, name: str = "out", dtype: torch.dtype | None = None) -> None:
        """Checks every form against the symbols R and w of a contract; `dtype` is that of the plain form.

        Raises:
            ShapeError: A form has another shape or dtype, a part of a form is missing, or there is none.
        """
        byte, sizes = torch.uint8, contract.sizes
        if self.plain is not None:
            contract.tensor(f"{name}.plain", self.plain, "R w", dtype)
        if self.fp8 is not None:
            contract.tensor(f"{name}.fp8", self.fp8, "R w", byte)
            contract.require(self.fp8_scale is not None, f"{name}.fp8_scale", "a tensor", None)
            assert self.fp8_scale is not None
            contract.tensor(f"{name}.fp8_scale", self.fp8_scale, "R", torch.float32)
        if self.nvfp4 is not None:
            complete = self.nvfp4_scale is not None and self.encode_scale is not None
            contract.require(complete, f"{name}.nvfp4_scale and encode_scale", "tensors", None)
            assert self.nvfp4_scale is not None
            assert self.encode_scale is not None
            contract.tensor(f"{name}.nvfp4", self.nvfp4, "R half", byte)
            contract.tensor(f"{name}.nvfp4_scale", self.nvfp4_scale, "R blocks", byte)
            contract.tensor(f"{name}.encode_scale", self.encode_scale, "1", torch.float32)
            width = sizes.setdefault("w", 2 * sizes["half"])
            is_cut = (width, width) == (2 * sizes["half"], NVFP4_BLOCK_SIZE * sizes["blocks"])
            contract.require(
                is_cut,
                f"{name}.nvfp4",
                f"[R, {width} / 2] with scales [R, {width} / {NVFP4_BLOCK_SIZE}]",
                f"{sizes['half']} and {sizes['blocks']} columns",
            )
        is_empty = self.plain is None and self.fp8 is None and self.nvfp4 is None
        contract.require(not is_empty, name, "at least one form", "none")
