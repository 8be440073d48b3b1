"""What a quantized linear consists of, scheme by scheme, as the two formats define it.

compressed-tensors 0.19 (``quantization/quant_args.py``, ``compressors/``) and ModelOpt 0.47
(``torch/export/quant_utils.py``), whoever wrote the file. Knows names, dtypes and shapes; decodes a weight.
Does not know which linear has which scheme.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from math import ceil
from types import MappingProxyType
from typing import Any, Literal

from torch import Tensor

from ocrquant.formats import FORMATS, Precision
from ocrquant.formats.nvfp4 import NVFP4Weight, from_modelopt
from ocrquant.formats.weights import FP8Weight, scale_columns

__all__ = ["PART_NAMES", "Part", "Scheme", "compressed_scheme", "modelopt_scheme"]

_BLOCK = FORMATS[Precision.NVFP4].width_multiple
_FLOATS = frozenset({"F32", "BF16", "F16"})
_F32 = frozenset({"F32"})
_F8 = frozenset({"F8_E4M3"})

Shapes = Callable[[int, int], tuple[tuple[int, ...], ...]]
Role = Literal["codes", "scale", "global", "input", "factors"]


def _one(_out: int, _width: int) -> tuple[tuple[int, ...], ...]:
    # Readers that expect one number take either; a vector of three is a fused layer's and fails to load.
    return (), (1,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One tensor of a quantized linear.

    Attributes:
        name: Its name behind that of the linear.
        role: What it is for; all but codes and factors are scales.
        dtypes: What it may be stored as, by the names of safetensors.
        shapes: The shapes that it may have for a weight [out, in].
    """

    name: str
    role: Role
    dtypes: frozenset[str]
    shapes: Shapes


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """How a linear is stored.

    Attributes:
        name: What people call it.
        precision: Its format; the width and bits follow from it.
        parts: Its tensors, codes first.
        optional: Names of parts that may be absent.
        divides: Whether its global scale divides.
        block: Rows and columns of a block that shares an FP8 scale; else None.
        weights_only: Whether inputs stay as they are, so that a product is computed in their dtype.
    """

    name: str
    precision: Precision
    parts: tuple[Part, ...]
    optional: frozenset[str] = frozenset()
    divides: bool = False
    block: tuple[int, int] | None = None
    weights_only: bool = False

    @property
    def codes(self) -> Part:
        """The part that holds the codes."""
        return self.parts[0]

    def shape(self, stored: tuple[int, ...]) -> tuple[int, int]:
        """``(out, in)`` of the weight behind codes of a stored shape."""
        rows, columns = stored
        return rows, columns * (2 if self.precision is Precision.NVFP4 else 1)

    def decode(self, parts: Mapping[str, Tensor]) -> Tensor:
        """The weight that a reader computes with, float32 [out, in].

        Args:
            parts: Every part that is stored, by its name.
        """
        codes, scale = parts[self.codes.name], parts["weight_scale"]
        if self.precision is Precision.NVFP4:
            name = next(part.name for part in self.parts if part.role == "global")
            stored = parts[name].float().reshape(1)
            encode = stored if self.divides else from_modelopt(stored)
            weight = NVFP4Weight(packed=codes, block_scale=scale, encode_scale=encode).dequantize()
        elif self.block is not None:
            rows, columns = self.block
            grid = scale.float().repeat_interleave(rows, 0).repeat_interleave(columns, 1)
            weight = codes.float() * grid[: codes.shape[0], : codes.shape[1]]
        else:
            column = scale.float().reshape(-1, 1).expand(codes.shape[0], 1).contiguous()
            weight = FP8Weight(codes=codes, decode_scale=column).dequantize()
        factors = parts.get("pre_quant_scale")
        return weight if factors is None else scale_columns(weight, factors)


_PACKED = Part(
    name="", role="codes", dtypes=frozenset({"U8"}), shapes=lambda out, width: ((out, width // 2),)
)
_BLOCK_SCALE = Part(
    name="weight_scale", role="scale", dtypes=_F8, shapes=lambda out, width: ((out, width // _BLOCK),)
)
_E4M3 = Part(name="weight", role="codes", dtypes=_F8, shapes=lambda out, width: ((out, width),))


def _packed(name: str) -> Part:
    return Part(name=name, role="codes", dtypes=_PACKED.dtypes, shapes=_PACKED.shapes)


def _scale(shapes: Shapes, dtypes: frozenset[str] = _FLOATS) -> Part:
    return Part(name="weight_scale", role="scale", dtypes=dtypes, shapes=shapes)


def _number(name: str, role: Role, dtypes: frozenset[str] = _F32) -> Part:
    return Part(name=name, role=role, dtypes=dtypes, shapes=_one)


def _blocks(rows: int, columns: int) -> Shapes:
    return lambda out, width: ((ceil(out / rows), ceil(width / columns)),)


_MODELOPT: Mapping[str, Scheme] = MappingProxyType(
    {
        "FP8": Scheme(
            name="FP8",
            precision=Precision.FP8,
            parts=(_E4M3, _scale(_one, _F32), _number("input_scale", "input")),
        ),
        "FP8_PER_CHANNEL_PER_TOKEN": Scheme(
            name="FP8_PER_CHANNEL_PER_TOKEN",
            precision=Precision.FP8,
            parts=(_E4M3, _scale(lambda out, _: ((out,), (out, 1)), _F32)),
        ),
        "NVFP4": Scheme(
            name="NVFP4",
            precision=Precision.NVFP4,
            parts=(
                _packed("weight"),
                _BLOCK_SCALE,
                _number("weight_scale_2", "global"),
                _number("input_scale", "input"),
            ),
        ),
        "W4A16_NVFP4": Scheme(
            name="W4A16_NVFP4",
            precision=Precision.NVFP4,
            parts=(_packed("weight"), _BLOCK_SCALE, _number("weight_scale_2", "global")),
            weights_only=True,
        ),
        "NVFP4_AWQ": Scheme(
            name="NVFP4_AWQ",
            precision=Precision.NVFP4,
            parts=(
                _packed("weight"),
                _BLOCK_SCALE,
                _number("weight_scale_2", "global"),
                _number("input_scale", "input"),
                Part(
                    name="pre_quant_scale",
                    role="factors",
                    dtypes=_FLOATS,
                    shapes=lambda _, width: ((width,),),
                ),
            ),
            optional=frozenset({"pre_quant_scale"}),  # folded into the norm where there is one
        ),
    }
)

PART_NAMES = frozenset(
    {
        *(part.name for scheme in _MODELOPT.values() for part in scheme.parts),
        *("weight_packed", "weight_global_scale", "input_global_scale", "input_zero_point"),
        *("weight_zero_point", "weight_g_idx", "weight_shape", "g_idx", "qweight", "qzeros", "scales"),
        *("weight_scale_inv", "output_scale", "weight_bias"),
    }
) - {"weight"}
"""Names of tensors that belong to some way of quantizing a linear, of this package or another."""


def modelopt_scheme(algorithm: str) -> Scheme | None:
    """The scheme of a ``quant_algo``; None where its tensors are not known here."""
    return _MODELOPT.get(algorithm.upper())


_INPUT_STRATEGIES: Mapping[object, tuple[str | None, ...]] = {
    False: ("tensor", None),
    True: ("token", "tensor", "group", None),
    "local": ("tensor_group",),
}
"""How scales of inputs are found -> what shares one; where nothing is said, compressed-tensors infers it."""


def compressed_scheme(group: Mapping[str, Any]) -> Scheme | None:
    """The scheme of an entry of ``config_groups``; None where its tensors are not known here."""
    weights, inputs = group.get("weights"), group.get("input_activations")
    if not isinstance(weights, Mapping) or weights.get("type") != "float" or weights.get("dynamic"):
        return None
    block = weights.get("block_structure")
    size = tuple(int(edge) for edge in block) if isinstance(block, (list, tuple)) else None
    strategy, bits = str(weights.get("strategy")), weights.get("num_bits")
    # Static inputs have one scale a tensor; those of tokens and of groups are found on the fly.
    given = inputs if isinstance(inputs, Mapping) else None
    kind = (
        None if given is None else "local" if given.get("dynamic") == "local" else bool(given.get("dynamic"))
    )
    if given is not None and (
        given.get("type") != "float" or given.get("strategy") not in _INPUT_STRATEGIES[kind]
    ):
        return None
    return _compressed(bits, strategy, weights.get("group_size"), kind, size)


@cache
def _compressed(
    bits: object, strategy: str, group_size: object, inputs: object, block: tuple[int, ...] | None
) -> Scheme | None:
    if bits == 4 and strategy == "tensor_group" and group_size == _BLOCK and inputs in (None, "local"):
        parts = [_packed("weight_packed"), _BLOCK_SCALE, _number("weight_global_scale", "global")]
        if inputs == "local":
            parts.append(_number("input_global_scale", "input"))
        name = "NVFP4" if inputs else "NVFP4A16"
        return Scheme(
            name=name,
            precision=Precision.NVFP4,
            parts=tuple(parts),
            divides=True,
            weights_only=inputs is None,
        )
    shapes: Mapping[str, Shapes] = {"tensor": _one, "channel": lambda out, _: ((out, 1),)}
    if block is not None and len(block) == 2:
        shapes = {**shapes, "block": _blocks(block[0], block[1])}
    if bits != 8 or strategy not in shapes or inputs == "local":
        return None
    parts = [_E4M3, _scale(shapes[strategy])]
    if inputs is False:
        parts.append(_number("input_scale", "input", _FLOATS))
    how = {None: "weights alone", False: "static inputs", True: "inputs by token"}[inputs]  # type: ignore[index]
    return Scheme(
        name=f"FP8 by {strategy}, {how}",
        precision=Precision.FP8,
        parts=tuple(parts),
        block=(block[0], block[1]) if strategy == "block" and block else None,
        weights_only=inputs is None,
    )
