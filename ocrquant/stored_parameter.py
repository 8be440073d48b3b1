"""A parameter whose numbers are on the disk: the one agreement between who loads it and who changes it.

Knows neither files nor plans.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

__all__ = ["StoredParameter"]


class StoredParameter(nn.Parameter):
    """Shape and dtype of a weight that is read when a module needs it; on the device ``meta`` until then.

    What is read is converted to the dtype that the parameter has at that moment.

    Attributes:
        source: Name of the tensor in the checkpoint.
        base_dtype: Dtype of the model when it was loaded, through which every number goes.
        changes: What a plan does to the numbers, in order, each in the dtype that it was added in.
    """

    source: str
    base_dtype: torch.dtype
    changes: list[Callable[[Tensor], Tensor]]

    @classmethod
    def of(cls, source: str, parameter: Tensor) -> StoredParameter:
        """Stands in for a parameter on the device ``meta``."""
        made = cls(parameter.detach(), requires_grad=False)
        made.source, made.base_dtype, made.changes = source, parameter.dtype, []
        return made

    def change(self, function: Callable[[Tensor], Tensor]) -> Callable[[], None]:
        """Adds a change, which gets the numbers in the present dtype; call the result to undo it."""
        dtype = self.dtype

        def converted(value: Tensor) -> Tensor:
            return function(value.to(dtype)).to(dtype)

        self.changes.append(converted)
        return lambda: self.changes.remove(converted)

    def changed(self, value: Tensor) -> Tensor:
        """The numbers as the model shall see them.

        Args:
            value: What is stored, in `base_dtype`, on the device of the model.
        """
        for change in self.changes:
            value = change(value)
        return value.to(self.dtype)
