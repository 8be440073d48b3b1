"""What every stage file has in common: a header, one textual form, validated reading, atomic writing.

Knows the header and JSON. Does not know which stage comes after which: see `run_folder` for what is up to
date.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from ocrquant import __version__
from ocrquant.artifacts.atomic import write_bytes
from ocrquant.artifacts.digests import sha256_file
from ocrquant.errors import ArtifactError, dotted_key

__all__ = ["Artifact", "FileRecord", "FrozenModel", "Producer", "Sha256", "artifact_error", "render_json"]

Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]

_HEADER = ("artifact", "schema_version", "producer", "inputs")


class FrozenModel(BaseModel):
    """Base of everything inside an artefact: unknown keys, NaN and Inf are refused, values do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Producer(FrozenModel):
    """Versions of what wrote an artefact."""

    ocrquant: str
    torch: str
    transformers: str

    @classmethod
    def current(cls) -> Producer:
        """Versions of this process; none of the libraries is imported for it."""
        return cls(ocrquant=__version__, torch=_version("torch"), transformers=_version("transformers"))


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "absent"


class FileRecord(FrozenModel):
    """A file that belongs to an artefact and lies beside it."""

    sha256: Sha256
    num_bytes: int = Field(ge=0)

    @classmethod
    def of(cls, path: Path) -> FileRecord:
        """Measures a file.

        Raises:
            ArtifactError: The file cannot be read.
        """
        return cls(sha256=sha256_file(path), num_bytes=path.stat().st_size)


class Artifact(FrozenModel):
    """A stage file: header first, then what the stage found.

    Neither times nor durations belong here: a run that was killed and repeated writes the same bytes.

    Attributes:
        artifact: Name of the kind of file.
        schema_version: Version of its layout.
        producer: What wrote it.
        inputs: SHA-256 of everything that it was made from, by name.
    """

    FILE_NAME: ClassVar[str]
    SCHEMA_VERSION: ClassVar[int] = 1
    STAGE: ClassVar[str]

    artifact: str = ""
    schema_version: int = 0
    producer: Producer = Field(default_factory=Producer.current)
    inputs: dict[str, Sha256]

    def __init__(self, **values: Any) -> None:
        values.setdefault("artifact", self.kind())
        values.setdefault("schema_version", self.SCHEMA_VERSION)
        super().__init__(**values)

    @classmethod
    def kind(cls) -> str:
        """The file's name without its suffix: what its header and the `inputs` of later stages call it."""
        return cls.FILE_NAME.split(".", 1)[0]

    def files(self) -> Mapping[str, FileRecord]:
        """Files that lie beside this one and belong to it, by their path relative to it."""
        return {}

    def checked_file(self, folder: Path, name: str) -> Path:
        """Path of one of `files`, after its bytes were compared with the digest.

        Args:
            folder: The run folder.
            name: Its name there.

        Raises:
            ArtifactError: The file is missing or is not the one that this artefact was written with.
        """
        path, wanted = folder / name, self.files()[name].sha256
        if (digest := sha256_file(path)) != wanted:
            fix = f"delete {self.FILE_NAME} and run the command again"
            raise ArtifactError(path, expected=f"SHA-256 {wanted}", given=digest, fix=fix)
        return path

    def render(self) -> str:
        """The file's text; equal artefacts give equal text."""
        return render_json(self.model_dump(mode="json"))

    @classmethod
    def parse(cls, text: str) -> Any:
        """Reads what `render` wrote into plain data.

        Raises:
            ValueError: The text is malformed.
        """
        return json.loads(text)

    def save(self, folder: Path) -> Path:
        """Writes the file atomically and returns its path.

        Raises:
            OutputError: The folder is not writable or the disk is full.
        """
        path = folder / self.FILE_NAME
        write_bytes(path, self.render().encode())
        return path

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """Reads and validates a file.

        Args:
            path: The file, or the run folder that holds it.

        Raises:
            ArtifactError: The file is missing or malformed, or another version wrote it.
        """
        path = Path(path)
        path = path / cls.FILE_NAME if path.is_dir() else path
        data = cls._read(path)
        if data["schema_version"] != cls.SCHEMA_VERSION:
            raise ArtifactError(
                f"{path}: schema_version",
                expected=cls.SCHEMA_VERSION,
                given=data["schema_version"],
                fix="delete the file and run the command again",
            )
        try:
            return cls(**data)
        except ValidationError as error:
            raise artifact_error(path, error) from error

    @classmethod
    def schema_version_of(cls, path: Path) -> object:
        """The schema version that a file claims, which may be one that this class cannot read.

        Raises:
            ArtifactError: The file is missing, or its header is malformed.
        """
        return cls._read(path)["schema_version"]

    @classmethod
    def _read(cls, path: Path) -> dict[str, Any]:
        expected = _file_of(cls.kind())
        fix = "mend the file, or delete it and run the command again"
        try:
            data = cls.parse(path.read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            first = f"run the stage `{cls.STAGE}` first"
            raise ArtifactError(path, expected=expected, given="nothing", fix=first) from error
        except (OSError, ValueError) as error:
            raise ArtifactError(path, expected=expected, given=error, fix=fix) from error
        missing = [key for key in _HEADER if not isinstance(data, dict) or key not in data]
        if missing:
            given = f"no key {missing[0]!r}"
            raise ArtifactError(path, expected=expected, given=given, fix=fix)
        if data["artifact"] != cls.kind():
            raise ArtifactError(path, expected=expected, given=_file_of(data["artifact"]), fix=fix)
        return {str(key): value for key, value in data.items()}


def _file_of(kind: object) -> str:
    name = str(kind)
    return f"{'an' if name[:1] in 'aeiou' and name else 'a'} {name} file"


def artifact_error(path: Path, error: ValidationError) -> ArtifactError:
    """Names the first malformed key of a file."""
    first = error.errors(include_url=False)[0]
    key = dotted_key(first["loc"])
    given = "an unknown key" if first["type"] == "extra_forbidden" else repr(first["input"])
    return ArtifactError(
        f"{path}: {key}" if key else path,
        expected=first["msg"][:1].lower() + first["msg"][1:],
        given="nothing" if first["type"] == "missing" else given if len(given) <= 80 else given[:77] + "...",
        fix="mend the file, or delete it and run the command again",
    )


def render_json(data: Mapping[str, object]) -> str:
    """JSON that diffs well: one line for each top-level key, and one for each item of a top-level list.

    Raises:
        ValueError: A number is NaN or infinite.
    """
    lines = []
    for key, value in data.items():
        if isinstance(value, list) and value:
            items = ",\n".join(f"  {_compact(item)}" for item in value)
            lines.append(f" {_compact(key)}: [\n{items}\n ]")
        else:
            lines.append(f" {_compact(key)}: {_compact(value)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _compact(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
