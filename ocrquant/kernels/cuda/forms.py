"""Where the CUDA producers write: the forms of an operand, with two that a CPU has no use for.

Beside the forms of `kernels.operand`: FP8 codes of one calibrated scale for all tokens, and NVFP4 block
scales in the swizzled layout that block-scaled matrix products read. Knows shapes and dtypes; computes
nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from ocrquant.formats.precision import NVFP4_BLOCK_SIZE
from ocrquant.kernels.contract import Contract
from ocrquant.kernels.cuda.arguments import OperandOut
from ocrquant.kernels.operand import Operand

__all__ = ["SWIZZLE_ROWS", "SWIZZLE_SCALES", "Forms", "swizzled_shape"]

SWIZZLE_ROWS, SWIZZLE_SCALES = 128, 4


def swizzled_shape(rows: int, width: int) -> tuple[int, int]:
    """Shape of the swizzled block scales of [rows, width]: rows to a multiple of 128, scales to one of 4.

    The bytes lie in tiles of 128 by 4, one after another, so only the number of them is that of the shape.
    """
    blocks = width // NVFP4_BLOCK_SIZE
    padded = (rows + SWIZZLE_ROWS - 1) // SWIZZLE_ROWS * SWIZZLE_ROWS
    return padded, (blocks + SWIZZLE_SCALES - 1) // SWIZZLE_SCALES * SWIZZLE_SCALES


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Forms:
    """The forms that a producer writes of R rows of width w; None for what is not wanted.

    Attributes:
        plain: bf16 [R, w].
        fp8: uint8 [R, w], E4M3 codes; with one of the two scales.
        fp8_scale: float32 [R], written: what each token's codes are multiplied by.
        fp8_static: float32 [1], read: one scale for all tokens, finite and > 0.
        nvfp4: uint8 [R, w / 2], E2M1 codes, the even column in the low nibble.
        nvfp4_scale: uint8, E4M3 block scales: row-major [R, w / 16], or of `swizzled_shape`.
        encode_scale: float32 [1], read: the calibrated global scale of the NVFP4 codes.
        is_swizzled: Whether nvfp4_scale is swizzled; its padding is then written too, with zeros.
    """

    plain: Tensor | None = None
    fp8: Tensor | None = None
    fp8_scale: Tensor | None = None
    fp8_static: Tensor | None = None
    nvfp4: Tensor | None = None
    nvfp4_scale: Tensor | None = None
    encode_scale: Tensor | None = None
    is_swizzled: bool = False

    @classmethod
    def of(cls, operand: Operand) -> Forms:
        """The forms of an operand: FP8 scales by token, NVFP4 scales row-major."""
        return cls(**{f.name: getattr(operand, f.name) for f in fields(operand)})

    @classmethod
    def allocate(
        cls,
        rows: int,
        width: int,
        device: torch.device | str,
        *,
        plain: bool = False,
        fp8: bool = False,
        fp8_static: Tensor | None = None,
        encode_scale: Tensor | None = None,
        is_swizzled: bool = False,
    ) -> Forms:
        """Memory for the forms that are wanted, not initialised.

        Args:
            rows: R.
            width: w.
            device: Where.
            plain: Whether unquantized rows are wanted.
            fp8: Whether FP8 codes with a scale by token are wanted.
            fp8_static: The scale of FP8 codes that have one for all tokens.
            encode_scale: The global scale of NVFP4 codes; None where none are wanted.
            is_swizzled: Whether NVFP4 scales are swizzled.
        """

        def empty(shape: tuple[int, ...], kind: torch.dtype = torch.uint8) -> Tensor:
            return torch.empty(shape, dtype=kind, device=device)

        has_nvfp4, has_fp8 = encode_scale is not None, fp8 or fp8_static is not None
        linear = (rows, width // NVFP4_BLOCK_SIZE)
        scales = swizzled_shape(rows, width) if is_swizzled else linear
        return cls(
            plain=empty((rows, width), torch.bfloat16) if plain else None,
            fp8=empty((rows, width)) if has_fp8 else None,
            fp8_scale=empty((rows,), torch.float32) if has_fp8 and fp8_static is None else None,
            fp8_static=fp8_static,
            nvfp4=empty((rows, width // 2)) if has_nvfp4 else None,
            nvfp4_scale=empty(scales) if has_nvfp4 else None,
            encode_scale=encode_scale,
            is_swizzled=is_swizzled,
        )

    def check(self, contract: Contract) -> None:
        """Checks every form against R and w of a contract.

        Raises:
            ShapeError: A form has another shape or dtype, a part of a form is missing, or there is none.
        """
        byte, f32 = torch.uint8, torch.float32
        width = contract.sizes["w"]
        if self.plain is not None:
            contract.tensor("out.plain", self.plain, "R w", torch.bfloat16)
        if self.fp8 is not None:
            contract.tensor("out.fp8", self.fp8, "R w", byte)
            given = [n for n in ("fp8_scale", "fp8_static") if getattr(self, n) is not None]
            contract.require(
                len(given) == 1, "out.fp8", "one of fp8_scale and fp8_static", given or "neither"
            )
            for name, shape in (("fp8_scale", "R"), ("fp8_static", "1")):
                if name in given:
                    contract.tensor(f"out.{name}", getattr(self, name), shape, f32)
        if self.nvfp4 is not None:
            fits = width % NVFP4_BLOCK_SIZE == 0
            contract.require(fits, "out.nvfp4", f"a width that is a multiple of {NVFP4_BLOCK_SIZE}", width)
            is_complete = self.nvfp4_scale is not None and self.encode_scale is not None
            contract.require(is_complete, "out.nvfp4_scale and out.encode_scale", "tensors", None)
            assert self.nvfp4_scale is not None
            assert self.encode_scale is not None
            rows = contract.sizes["R"]
            contract.tensor("out.nvfp4", self.nvfp4, f"R {width // 2}", byte)
            wanted = swizzled_shape(rows, width) if self.is_swizzled else (rows, width // NVFP4_BLOCK_SIZE)
            contract.tensor("out.nvfp4_scale", self.nvfp4_scale, f"{wanted[0]} {wanted[1]}", byte)
            contract.tensor("out.encode_scale", self.encode_scale, "1", f32)
        is_empty = self.plain is None and self.fp8 is None and self.nvfp4 is None
        contract.require(not is_empty, "out", "at least one form", "none")

    def structure(self, rows: int, width: int) -> OperandOut:
        """As a launcher takes it."""
        given = {f.name: getattr(self, f.name) for f in fields(self)}
        addresses = {n: t.data_ptr() if isinstance(t, Tensor) else t for n, t in given.items()}
        return OperandOut(**addresses, rows=rows, width=width)
