"""The tensors of a checkpoint to be written: what each will be, and how to make it when its turn comes.

Knows order and checks. Does not know where a tensor comes from, and holds none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from ocrquant.artifacts import KvScales
from ocrquant.checkpoint import FileFormat, TensorSpec
from ocrquant.errors import WeightValueError
from ocrquant.formats import Precision

__all__ = ["Maker", "TensorList"]

Maker = Callable[[], Tensor]


class TensorList:
    """Tensors in the order in which they are spread over files, each made when it is asked for.

    Args:
        file_format: How quantized linears and cache scales are stored.

    Attributes:
        specs: What is to be written.
    """

    def __init__(self, file_format: FileFormat) -> None:
        self.specs: list[TensorSpec] = []
        self._format = file_format
        self._makers: dict[str, Maker] = {}
        self._scales: set[str] = set()

    def add(self, spec: TensorSpec, maker: Maker) -> None:
        """Adds a tensor that is no scale."""
        self.specs.append(spec)
        self._makers[spec.name] = maker

    def add_linear(
        self, linear: str, precision: Precision, shape: tuple[int, int], read: Callable[[str], Tensor]
    ) -> None:
        """Adds the tensors of a quantized linear.

        Args:
            linear: Its name.
            precision: Its precision.
            shape: ``(out, in)`` of its weight.
            read: Gives one of its tensors in this package's form, by the name of the part.
        """
        specs = self._format.specs(linear, precision, *shape)
        for spec, part in zip(specs, self._format.parts[precision], strict=True):
            self.add(spec, partial(lambda part: part.write(read(part.part)), part))
        self._scales |= {spec.name for spec in specs[1:]}

    def add_kv(self, kv: Sequence[KvScales]) -> None:
        """Adds the scales of caches."""
        for scales in kv:
            values = (scales.k_decode_scale, scales.v_decode_scale)
            for name, value in zip(self._format.kv_tensors(scales.name), values, strict=True):
                shape = self._format.kv_shape
                self.add(TensorSpec(name, "F32", shape), partial(torch.full, shape, value))
                self._scales.add(name)

    def make(self, name: str) -> Tensor:
        """The tensor of a name, on the CPU.

        Raises:
            ModelError: The source cannot be read.
            WeightValueError: A scale is not finite and positive.
        """
        tensor = self._makers[name]()
        if name in self._scales:
            values = tensor.float()
            if not bool((torch.isfinite(values) & (values > 0)).all()):
                raise WeightValueError(
                    name,
                    expected="finite scales above 0",
                    given=f"{values.min().item()} to {values.max().item()}",
                    fix="run the stage `rounding` again",
                )
        return tensor
