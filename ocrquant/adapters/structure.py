"""What a document model is made of, in the names of its checkpoint.

Knows linears, the groups that share a precision, norms and what reads them, and by which prefixes the names
of modules in memory differ from those of tensors on disk. Knows no tensor data, no recipe and no
architecture: other modules fill these records in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from ocrquant.formats import FORMATS, Precision
from ocrquant.stacked_experts import StackedWeight

__all__ = ["Group", "LinearInfo", "ModelMap", "NormFold", "TensorInfo", "exchange_prefix"]


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of the checkpoint, as its safetensors header describes it.

    Attributes:
        dtype: safetensors name, such as ``BF16``.
        shape: Sizes of the axes.
        file: Name of the shard that holds it.
        num_bytes: Bytes of its data.
    """

    dtype: str
    shape: tuple[int, ...]
    file: str
    num_bytes: int

    @property
    def num_elements(self) -> int:
        """Product of the axes."""
        return prod(self.shape)


@dataclass(frozen=True, slots=True)
class LinearInfo:
    """One linear layer: y = x W^T + b with W [out_features, in_features].

    Attributes:
        name: Module path in the checkpoint, without ``.weight``; `ModelMap.module_path` is the one in memory.
        in_features: Width of the input.
        out_features: Width of the output.
        has_bias: Whether the checkpoint holds ``{name}.bias``.
        kind: Role, such as ``attention.qkv``, ``gdn.out``, ``mlp.down``, ``experts.down`` or ``lm_head``.
        block: Index of the decoder layer; None outside of them.
    """

    name: str
    in_features: int
    out_features: int
    has_bias: bool
    kind: str
    block: int | None

    @property
    def num_weights(self) -> int:
        """Elements of the weight, bias left out."""
        return self.in_features * self.out_features


@dataclass(frozen=True, slots=True)
class Group:
    """Linears that read one input and must share one precision and one NVFP4 global scale.

    Serving engines run such linears as one matrix product, so that a group is the unit of the search.

    Attributes:
        name: Short name, such as ``layers.0.mlp.gate_up``.
        kind: Kind of all members.
        block: Index of the decoder layer; None outside of them.
        linears: Members in the order of the fused product; absent ones are left out.
    """

    name: str
    kind: str
    block: int | None
    linears: tuple[LinearInfo, ...]

    @property
    def in_features(self) -> int:
        """Width of the shared input."""
        return self.linears[0].in_features

    @property
    def num_weights(self) -> int:
        """Elements of all weights, biases left out."""
        return sum(linear.num_weights for linear in self.linears)

    def reason_against(self, precision: Precision) -> str | None:
        """Why the group cannot be stored in a precision; None where it can."""
        row = FORMATS[precision]
        for linear in self.linears:
            if not row.fits(linear.in_features):
                return f"{linear.name} is {linear.in_features} wide, no multiple of {row.width_multiple}"
        return None

    def weight_bytes(self, precision: Precision) -> int:
        """Exact bytes of all weights on disk, scales included, biases left out.

        Raises:
            ShapeError: The precision does not fit the width.
        """
        row = FORMATS[precision]
        return sum(row.weight_bytes(linear.out_features, linear.in_features) for linear in self.linears)


@dataclass(frozen=True, slots=True)
class NormFold:
    """A norm and everything that reads its output, for moving scale between channels.

    Dividing the norm's multiplier by s and multiplying column j of every reader by s[j] leaves the model
    unchanged.

    Attributes:
        norm: Module path of the norm.
        linears: All linears that read its output, those that always stay bf16 included.
        offset: Whether the multiplier is 1 + w instead of w.
    """

    norm: str
    linears: tuple[str, ...]
    offset: bool


def exchange_prefix(name: str, pairs: Sequence[tuple[str, str]]) -> str:
    """A dotted name with the first prefix among `pairs` that it has replaced by that one's partner."""
    for before, after in pairs:
        if name == before or name.startswith(f"{before}."):
            return after + name.removeprefix(before)
    return name


@dataclass(frozen=True, slots=True)
class ModelMap:
    """Everything that later stages need to know of a checkpoint before they load it.

    Attributes:
        architecture: Class name of the Hugging Face model.
        num_blocks: Decoder layers.
        block_prefix: Module path of the list of decoder layers; layer i is ``{block_prefix}.{i}``.
        groups: The searchable groups, in the order of the forward pass.
        kept: Decoder linear that always stays bf16 -> reason.
        kept_groups: The same linears as groups.
        vision: Modules of the vision encoder and its merger that hold tensors: never touched.
        vision_linears: Those among them that are linear layers.
        norm_folds: Norms whose readers are all known.
        kv_attention: Modules of the full-attention layers, whose keys and values are cached.
        tied_head: Whether lm_head shares the weight of the embedding.
        mtp: Tensors of multi-token-prediction heads, copied as they are.
        other: Tensors that belong to no known part, copied as they are.
        max_positions: Longest sequence that the decoder was made for, in tokens.
        tensors: Every tensor of the checkpoint; experts that it stores as one tensor are told apart here.
        stacked: Where the weights of experts lie that are told apart.
        renamed: Prefixes of names on disk and, where another, of the same modules in memory.
        guesses: What was concluded without knowing the architecture, one sentence each; else empty.
    """

    architecture: str
    num_blocks: int
    block_prefix: str
    groups: tuple[Group, ...]
    kept: Mapping[str, str]
    kept_groups: tuple[Group, ...]
    vision: tuple[str, ...]
    vision_linears: tuple[str, ...]
    norm_folds: tuple[NormFold, ...]
    kv_attention: tuple[str, ...]
    tied_head: bool
    mtp: tuple[str, ...]
    other: tuple[str, ...]
    max_positions: int
    tensors: Mapping[str, TensorInfo]
    stacked: Mapping[str, StackedWeight] = field(default_factory=dict)
    renamed: tuple[tuple[str, str], ...] = ()
    guesses: tuple[str, ...] = ()

    @property
    def decoder(self) -> str:
        """Name of the module that holds embedding, decoder layers and final norm."""
        return self.block_prefix.rpartition(".")[0]

    def module_path(self, name: str) -> str:
        """Path in memory of a module by its name on disk."""
        return exchange_prefix(name, self.renamed)

    def disk_name(self, path: str) -> str:
        """Name on disk of a module or parameter by its path in memory."""
        return exchange_prefix(path, [(after, before) for before, after in self.renamed])

    def group(self, name: str) -> Group:
        """The group of a name, searchable or kept.

        Raises:
            KeyError: There is no such group.
        """
        for group in (*self.groups, *self.kept_groups):
            if group.name == name:
                return group
        raise KeyError(name)

    def linears(self) -> Iterator[LinearInfo]:
        """All searchable linears, in order."""
        for group in self.groups:
            yield from group.linears

    def group_of(self) -> dict[str, Group]:
        """Linear name -> its group, searchable and kept."""
        return {linear.name: group for group in (*self.groups, *self.kept_groups) for linear in group.linears}

    @property
    def num_weights(self) -> int:
        """Elements of all searchable weights."""
        return sum(group.num_weights for group in self.groups)

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors of the checkpoint."""
        return sum(tensor.num_bytes for tensor in self.tensors.values())
