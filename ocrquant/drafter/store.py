"""Cached features: what a target computed while it read pages, in files that are whole or not there.

One file holds the sequences of some pages one after another. Knows sequences and files; knows no model.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from ocrquant.artifacts.atomic import atomic_path
from ocrquant.errors import ArtifactError

__all__ = ["FeatureFile", "FeatureFolder", "TargetSequence", "shard_files", "write_shard"]

_NOTHING = torch.empty(0)
_PATTERN = "features-*.safetensors"


@dataclass(frozen=True, slots=True)
class TargetSequence:
    """One page with the target's own answer.

    Attributes:
        page: Name of the page.
        kind: Kind of the page.
        tokens: int64 [T]: prompt, answer, and the end token where the answer ended by itself.
        answer_start: Index of the first token of the answer.
        features: [F, taps * hidden], features of the first F tokens, F = T - 1 as a rule: the last token is
            never computed.
    """

    page: str
    kind: str
    tokens: Tensor
    answer_start: int
    features: Tensor


def write_shard(path: Path, sequences: Sequence[TargetSequence]) -> None:
    """Writes sequences to one file.

    Args:
        path: The file.
        sequences: Perhaps none: a file says that its pages were read.

    Raises:
        OutputError: The folder is not writable or the disk is full.
    """
    from safetensors.torch import save_file

    head = [[s.page, s.kind, len(s.tokens), s.answer_start, len(s.features)] for s in sequences]
    tensors = {
        "tokens": torch.cat([_NOTHING.int(), *(s.tokens.to(torch.int32) for s in sequences)]),
        # Of no sequence there are no features, whatever their width.
        "features": torch.cat([s.features for s in sequences]) if sequences else _NOTHING,
    }
    with atomic_path(path) as temporary:
        save_file(tensors, temporary, metadata={"sequences": json.dumps(head)})


def shard_files(folder: Path) -> list[Path]:
    """The files of a folder in order."""
    return sorted(folder.glob(_PATTERN))


class FeatureFile:
    """One file of features, read sequence by sequence.

    Args:
        path: The file.

    Raises:
        ArtifactError: It is no such file.
    """

    def __init__(self, path: Path) -> None:
        self._file = safe_open(path, framework="pt")
        metadata = self._file.metadata() or {}
        if "sequences" not in metadata:
            fix = "delete it and run the command again"
            raise ArtifactError(path, expected="cached features", given="another file", fix=fix)
        self._head = json.loads(metadata["sequences"])
        tokens, rows = 0, 0
        self._offsets = []
        for _, _, num_tokens, _, num_rows in self._head:
            self._offsets.append((tokens, rows))
            tokens, rows = tokens + num_tokens, rows + num_rows

    def __len__(self) -> int:
        return len(self._head)

    @property
    def num_tokens(self) -> list[int]:
        """Length of each sequence."""
        return [entry[2] for entry in self._head]

    @property
    def kinds(self) -> list[str]:
        """Kind of page of each sequence."""
        return [entry[1] for entry in self._head]

    def __getitem__(self, index: int) -> TargetSequence:
        page, kind, num_tokens, answer_start, num_rows = self._head[index]
        first, row = self._offsets[index]
        return TargetSequence(
            page,
            kind,
            self._file.get_slice("tokens")[first : first + num_tokens].long(),
            answer_start,
            self._file.get_slice("features")[row : row + num_rows],
        )

    def __iter__(self) -> Iterator[TargetSequence]:
        return (self[index] for index in range(len(self)))


class FeatureFolder:
    """All sequences of a folder, read one at a time whenever somebody goes through them.

    Args:
        folder: With files of features.
    """

    def __init__(self, folder: Path) -> None:
        self._files = [FeatureFile(path) for path in shard_files(folder)]

    def __len__(self) -> int:
        return sum(map(len, self._files))

    def __iter__(self) -> Iterator[TargetSequence]:
        return chain.from_iterable(self._files)
