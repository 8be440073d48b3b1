"""Which linears of a module there are, what they read, and which of them must share a format.

Found by watching the module run, never by names: linears that read one tensor in one pass share a group, as
do linears that share a weight. Serving engines run such linears as one matrix product with one scale; where a
caller's engine does not, the groups may be split again. Knows modules and tensors; knows no format.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from math import inf, isfinite
from typing import Any

import torch
from torch import Tensor, nn

from ocrquant.errors import ModelError

__all__ = ["Groups", "ModuleLinears", "TensorKey", "checked_groups", "tensor_key", "watch_linears"]

Groups = Mapping[str, Sequence[str]]
"""Name of a group -> full names of its linears."""

TensorKey = tuple[int, int, tuple[int, ...], tuple[int, ...]]
"""What tells two living tensors apart: where they lie, how often they were written, and their form."""


def tensor_key(tensor: Tensor) -> TensorKey:
    """The same for two names of one tensor, and after an in-place change another one."""
    version = 0 if tensor.is_inference() else tensor._version
    return tensor.data_ptr(), version, tuple(tensor.shape), tensor.stride()


@dataclass(frozen=True, slots=True)
class ModuleLinears:
    """The linears that can be quantized.

    Attributes:
        groups: Conservative groups, in the order in which the module first called them.
        amax: Largest magnitude that each linear reads, over all batches.
        left_out: Linears that stay as they are, with the reason.
    """

    groups: dict[str, list[str]]
    amax: dict[str, float]
    left_out: dict[str, str]


@dataclass(slots=True)
class _Watched:
    """What the hooks saw so far; `readers` and `alive` hold one pass."""

    amax: dict[str, float] = field(default_factory=dict)
    unread: dict[str, str] = field(default_factory=dict)
    parent: dict[str, str] = field(default_factory=dict)
    readers: dict[TensorKey, str] = field(default_factory=dict)
    alive: list[Tensor] = field(default_factory=list)

    def root(self, name: str) -> str:
        while self.parent[name] != name:
            name = self.parent[name]
        return name

    def join(self, name: str, other: str) -> None:
        self.parent[self.root(name)] = self.root(other)

    def see(self, name: str, x: Tensor) -> None:
        self.parent.setdefault(name, name)
        largest = float(x.detach().abs().amax()) if x.numel() else 0.0
        self.amax[name] = max(self.amax.get(name, 0.0), largest if isfinite(largest) else inf)
        # Alive until the pass ends: the memory of a tensor that is gone may become another one's.
        self.alive.append(x)
        self.join(name, self.readers.setdefault(tensor_key(x), name))


@torch.no_grad()
def watch_linears(module: nn.Module, batches: Iterable[Any], run: Callable[[Any], object]) -> ModuleLinears:
    """Runs every batch once and notes what each ``nn.Linear`` reads.

    Args:
        module: The module; subclasses of ``nn.Linear`` are left alone, since they may compute something else.
        batches: What to run it on.
        run: Calls the module on a batch.

    Raises:
        ModelError: No linear was called, or one reads NaN or Inf.
    """
    linears = {name: child for name, child in module.named_modules() if name and type(child) is nn.Linear}
    left_out = _tied_elsewhere(module, linears) | _with_two_names(module)
    watched = _Watched()
    with ExitStack() as hooks:
        for name in linears.keys() - left_out.keys():
            hook = linears[name].register_forward_pre_hook(_watching(watched, name), with_kwargs=True)
            hooks.callback(hook.remove)
        for batch in batches:
            run(batch)
            watched.readers.clear()
            watched.alive.clear()
    left_out |= watched.unread
    known = watched.amax.keys() | left_out.keys()
    left_out |= {name: "never called" for name in linears if name not in known}
    _check_finite(watched.amax)
    for names in _sharing_a_weight(linears, watched.amax):
        for name in names[1:]:
            watched.join(name, names[0])
    members: dict[str, list[str]] = {}
    for name in watched.amax:
        if name not in left_out:
            members.setdefault(watched.root(name), []).append(name)
    if not members:
        fix = "pass a module that calls nn.Linear modules"
        raise ModelError(type(module).__name__, expected="linears to quantize", given="none", fix=fix)
    groups = {_group_name(names): names for names in members.values()}
    amax = {name: value for name, value in watched.amax.items() if name not in left_out}
    return ModuleLinears(groups, amax, left_out)


def checked_groups(found: ModuleLinears, wanted: Groups) -> dict[str, list[str]]:
    """A caller's own groups, in their order.

    Args:
        found: What the module holds.
        wanted: The groups; a linear that is in none of them stays as it is.

    Raises:
        ModelError: A group is empty, a linear is named twice or is none that can be quantized.
    """
    known, seen = found.amax.keys(), set()
    for group, names in wanted.items():
        for name in names:
            if name not in known or name in seen:
                given = "named twice" if name in seen else found.left_out.get(name, "no linear of that name")
                fix = "name linears of the groups that the function was given, each once"
                thing = f"linear {name} of group {group}"
                raise ModelError(thing, expected="a linear that can be quantized", given=given, fix=fix)
            seen.add(name)
        if not names:
            raise ModelError(f"group {group}", expected="linears", given="none", fix="leave the group out")
    if not wanted:
        raise ModelError("groups", expected="at least one", given="none", fix="name what may be quantized")
    return {group: list(names) for group, names in wanted.items()}


def _watching(watched: _Watched, name: str) -> Callable[..., None]:
    def hook(module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        if arguments:
            watched.see(name, arguments[0])
        else:
            watched.unread[name] = "called with its input as a keyword"

    return hook


def _tied_elsewhere(module: nn.Module, linears: Mapping[str, nn.Linear]) -> dict[str, str]:
    """Linears whose weight something else than a linear holds as well, such as an embedding."""
    owners: dict[int, list[str]] = {}
    for name, weight in module.named_parameters(remove_duplicate=False):
        owners.setdefault(id(weight), []).append(name)
    found = {}
    for name, linear in linears.items():
        others = [o for o in owners[id(linear.weight)] if o.removesuffix(".weight") not in linears]
        if others:
            found[name] = f"its weight is also {others[0]}"
    return found


def _with_two_names(module: nn.Module) -> dict[str, str]:
    """Linears that lie at two places of the module: a swap at one of them would not reach the other."""
    names: dict[int, list[str]] = {}
    for name, child in module.named_modules(remove_duplicate=False):
        if type(child) is nn.Linear:
            names.setdefault(id(child), []).append(name)
    return {found[0]: f"it is also {found[1]}" for found in names.values() if len(found) > 1}


def _sharing_a_weight(linears: Mapping[str, nn.Linear], called: Iterable[str]) -> Iterator[list[str]]:
    owners: dict[int, list[str]] = {}
    for name in called:
        owners.setdefault(id(linears[name].weight), []).append(name)
    yield from owners.values()


def _check_finite(amax: Mapping[str, float]) -> None:
    for name, value in amax.items():
        if value == inf:
            fix = "mend the batches or the module"
            raise ModelError(f"input of {name}", expected="finite values", given="NaN or Inf", fix=fix)


def _group_name(names: Sequence[str]) -> str:
    """``layers.0.q``, ``layers.0.k`` -> ``layers.0.q+k``; names of different parents are written out."""
    parents = {name.rpartition(".")[0] for name in names}
    if len(parents) > 1:
        return "+".join(names)
    leaves = "+".join(name.rpartition(".")[2] for name in names)
    parent = parents.pop()
    return f"{parent}.{leaves}" if parent else leaves
