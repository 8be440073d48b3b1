"""Finished sites of the rounding stage on disk, and the one file that they are joined into.

Knows how to survive a kill, to hold one site in memory at a time, and to put together what several processes
found. Does not know what a tensor means.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from ocrquant.artifacts import FileRecord, PartialStage, atomic_path
from ocrquant.checkpoint.layout import TensorSpec, plan_shards
from ocrquant.checkpoint.writer import dtype_name, write_shards

__all__ = ["SiteStore"]


class SiteStore:
    """Results by site; a site is done once its journal record is on the disk.

    Args:
        partial: Folder of the stage; what it already holds is taken over.
        index: Which process this is: each has a journal of its own, and reads all when it begins.
    """

    def __init__(self, partial: PartialStage, index: int = 0) -> None:
        self._partial = partial
        self._journal = partial.journal(f"sites-{index}")
        self._records: dict[str, dict[str, Any]] = {}
        self.refresh()
        self._read: tuple[str, dict[str, Tensor]] = ("", {})

    def refresh(self) -> None:
        """Takes over what other processes have finished."""
        for journal in self._partial.journals("sites-"):
            self._records |= {str(record["site"]): record for record in journal.read()}

    @property
    def done(self) -> frozenset[str]:
        """Names of the finished sites."""
        return frozenset(self._records)

    def add(self, site: str, record: Mapping[str, object], tensors: Mapping[str, Tensor]) -> None:
        """Stores a site.

        Raises:
            OutputError: The folder is not writable or the disk is full.
        """
        specs = [[name, dtype_name(tensor.dtype), list(tensor.shape)] for name, tensor in tensors.items()]
        self._partial.write(site, tensors)
        entry = {"site": site, "tensors": specs, **record}
        self._journal.append(entry)
        self._records[site] = entry

    def items(self, sites: Sequence[str], key: str) -> list[Any]:
        """Entries of the records under a key, site by site."""
        return [item for site in sites for item in self._records[site][key]]

    def write(self, path: Path, sites: Sequence[str]) -> FileRecord:
        """Joins the tensors of all sites into one safetensors file, atomically.

        Args:
            path: The file.
            sites: The sites in the order of the model.

        Raises:
            OutputError: The folder is not writable or the disk is full.
        """
        owner, specs = {}, []
        for site in sites:
            for name, dtype, shape in self._records[site]["tensors"]:
                owner[name] = site
                specs.append(TensorSpec(name, dtype, tuple(shape)))
        [shard] = plan_shards(specs, max_shard_bytes=sum(spec.num_bytes for spec in specs))
        with atomic_path(path) as temporary:
            shards = [type(shard)(temporary.name, shard.specs)]
            write_shards(temporary.parent, shards, lambda name: self._tensor(owner[name], name))
        return FileRecord.of(path)

    def _tensor(self, site: str, name: str) -> Tensor:
        if self._read[0] != site:
            stored = self._partial.read(site)
            assert stored is not None, f"the journal names site {site}, which is not stored"
            self._read = (site, stored)
        return self._read[1][name]
