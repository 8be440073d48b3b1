"""The folder of one run: one recipe, one command at a time, and the question whether a stage is up to date.

Where several processes share a run, the first of them holds the folder and writes what belongs to all. Knows
artefacts by their class and inputs by their digests. Does not know the order of the stages, nor what a recipe
says: it compares two of them key by key only to say where they differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import yaml
from filelock import FileLock, Timeout

from ocrquant import __version__
from ocrquant.artifacts.atomic import output_error, remove_temporaries, write_bytes, write_tensors
from ocrquant.artifacts.base import Artifact, FileRecord
from ocrquant.artifacts.digests import DigestCache, sha256_bytes, sha256_file
from ocrquant.artifacts.resume import Journal, PartialStage
from ocrquant.distributed import ranks
from ocrquant.errors import RunFolderError

__all__ = ["RunFolder"]

_RECIPE = "recipe.yaml"
_RECIPE_DIGEST = "recipe.sha256"
_LOCK = ".lock"
_PARTIAL = ".partial"

A = TypeVar("A", bound=Artifact)


class RunFolder:
    """A run folder that is open for writing. Use as a context manager: leaving it gives the lock back.

    Reading needs none of this: ``Sensitivity.load("runs/mine")`` works beside a running process.

    Attributes:
        path: The folder.
        digests: Cache of digests of large inputs, such as the model folder.
    """

    def __init__(self, path: Path, lock: FileLock) -> None:
        self.path = path
        number = ranks().index
        self.digests = DigestCache(path / _PARTIAL / f"digests{f'-{number}' if number else ''}.json")
        self._lock = lock

    @classmethod
    def open(
        cls, path: Path | str, *, recipe_digest: str, recipe_text: str, adopt: bool = False
    ) -> RunFolder:
        """Opens the folder, making it where it is missing, and locks it.

        Of several processes that share a run the first does so; the others come after it.

        Args:
            path: The folder.
            recipe_digest: Digest of the resolved recipe.
            recipe_text: The resolved recipe as YAML, kept in the folder for people.
            adopt: Go on with the artefacts of another recipe: those whose inputs did not change are kept.

        Raises:
            RunFolderError: Another recipe made the folder, something else lies in it, or a process is using
                it.
            OutputError: The folder is not writable.
        """
        with ranks().first_goes_ahead():
            path = Path(path)
            lock = FileLock(path / _LOCK)
            if ranks().is_first:
                cls._take(path, lock, recipe_digest, recipe_text, adopt=adopt)
            return cls(path, lock)

    @staticmethod
    def _take(path: Path, lock: FileLock, recipe_digest: str, recipe_text: str, *, adopt: bool) -> None:
        try:
            path.mkdir(parents=True, exist_ok=True)
            _check_foreign(path)
            lock.acquire(blocking=False)
        except Timeout as error:
            fix = "wait for it or name another output folder"
            raise RunFolderError(path, given="a folder that another ocrquant is using", fix=fix) from error
        except OSError as error:
            raise output_error(path, error) from error
        try:
            if not adopt:
                _check_recipe(path, recipe_digest, recipe_text)
            remove_temporaries(path)
            # The digest goes last: until it is there, a killed opening is repeated.
            _write_if_different(path / _RECIPE, recipe_text)
            _write_if_different(path / _RECIPE_DIGEST, recipe_digest + "\n")
        except BaseException:
            lock.release()
            raise

    def close(self) -> None:
        """Gives the lock back."""
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def is_current(self, kind: type[Artifact], inputs: Mapping[str, str]) -> bool:
        """Whether a stage can be skipped: its artefact was made from exactly these inputs by this version.

        Args:
            kind: The stage's artefact.
            inputs: SHA-256 of everything that the stage would be made from now, by name.

        Raises:
            ArtifactError: The file is there and malformed: a person may have edited it, so it is not
                overwritten.
        """
        path = self.path / kind.FILE_NAME
        if not path.is_file() or kind.schema_version_of(path) != kind.SCHEMA_VERSION:
            return False
        artifact = kind.load(path)
        if artifact.inputs != dict(inputs) or artifact.producer.ocrquant != __version__:
            return False
        return all(_is_there(self.path / name, record) for name, record in artifact.files().items())

    def load(self, kind: type[A]) -> A:
        """Reads an artefact.

        Raises:
            ArtifactError: It is missing or malformed.
        """
        return kind.load(self.path / kind.FILE_NAME)

    def save(self, artifact: Artifact) -> Path:
        """Writes an artefact atomically; files that belong to it must be there before.

        Of several processes that share a run the first does so.

        Raises:
            OutputError: The folder is not writable or the disk is full.
        """
        return artifact.save(self.path) if ranks().is_first else self.path / artifact.FILE_NAME

    def save_tensors(self, name: str, tensors: Mapping[str, Any]) -> FileRecord:
        """Writes a safetensors file atomically and returns the record for the artefact that it belongs to.

        Raises:
            OutputError: The folder is not writable or the disk is full.
        """
        write_tensors(self.path / name, tensors)
        return FileRecord.of(self.path / name)

    def digest(self, kind: type[Artifact]) -> str:
        """SHA-256 of an artefact's file, for the `inputs` of the stages that read it.

        Raises:
            ArtifactError: It is missing.
        """
        return sha256_file(self.path / kind.FILE_NAME)

    def partial(self, stage: str, inputs: Mapping[str, str]) -> PartialStage:
        """What a long stage has done so far for these inputs.

        Raises:
            OutputError: The folder is not writable.
        """
        return PartialStage(self.path / _PARTIAL / stage, inputs)

    def record_timing(self, stage: str, seconds: float, **counts: float) -> None:
        """Notes how long a stage took, in ``timings.jsonl``, which is not an artefact.

        Args:
            stage: Name of the stage.
            seconds: Wall-clock time.
            **counts: What was done in that time, such as ``num_pages=64``.

        Raises:
            OutputError: The file cannot be written.
        """
        if not ranks().is_first:
            return
        record = {"stage": stage, "seconds": round(seconds, 3), **counts}
        Journal(self.path / "timings.jsonl").append(record)


def _is_there(path: Path, record: FileRecord) -> bool:
    # Sizes only: a checkpoint of many gigabytes would cost a minute to hash each time a stage is skipped.
    # Files are complete by construction; whoever reads one compares the digest.
    return path.is_file() and path.stat().st_size == record.num_bytes


def _check_foreign(path: Path) -> None:
    """Refuses a folder with files of another kind before anything in it is touched."""
    if (path / _RECIPE_DIGEST).is_file():
        return
    names = sorted(c.name for c in path.iterdir() if not (c.name.startswith(".") or c.name == _RECIPE))
    if names:
        given = f"a folder with other files ({', '.join(names[:3])})"
        fix = "name an empty or new output folder"
        raise RunFolderError(path, expected="a run folder", given=given, fix=fix)


def _check_recipe(path: Path, recipe_digest: str, recipe_text: str) -> None:
    digest_file = path / _RECIPE_DIGEST
    if not digest_file.is_file() or digest_file.read_text(encoding="utf-8").strip() == recipe_digest:
        return
    differing = _differing_keys((path / _RECIPE).read_text(encoding="utf-8"), recipe_text)
    raise RunFolderError(
        path,
        expected="the recipe that made this run folder",
        given=f"one that differs in {', '.join(differing) or 'its form'}",
        fix="name another output folder, or --adopt this one to redo what depends on the difference",
    )


def _differing_keys(old: str, new: str) -> list[str]:
    """Dotted names of the values in which two YAML mappings differ."""
    left, right = _flatten(yaml.safe_load(old)), _flatten(yaml.safe_load(new))
    return sorted(key for key in left.keys() | right.keys() if left.get(key) != right.get(key))


def _flatten(value: object, prefix: str = "") -> dict[str, object]:
    if not isinstance(value, dict) or not value:
        return {prefix: value}
    flat: dict[str, object] = {}
    for key, child in value.items():
        flat.update(_flatten(child, f"{prefix}.{key}" if prefix else str(key)))
    return flat


def _write_if_different(path: Path, text: str) -> None:
    if not path.is_file() or sha256_file(path) != sha256_bytes(text.encode()):
        write_bytes(path, text.encode())
