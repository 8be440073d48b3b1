"""The drafter that a recipe's evaluation names: where it lies, and whether it belongs to the model.

Knows names, configurations and digests. Of the weights it reads the model's embedding alone, by which a
drafter knows its target, and that only where all sizes agree. Runs nothing.
"""

from __future__ import annotations

from pathlib import Path

from ocrquant.adapters import drafter_folder
from ocrquant.engine.drafter_folder import WEIGHTS, DrafterFolder
from ocrquant.engine.source import CheckpointSource
from ocrquant.errors import ArtifactError, ModelError
from ocrquant.json_files import read_json
from ocrquant.models import registry
from ocrquant.recipe import DrafterSection, Recipe

__all__ = ["DRAFTER_FOLDER", "RUN", "check_drafter", "evaluated_drafter", "run_drafter"]

DRAFTER_FOLDER = "drafter"
RUN = "run"
"""What `evaluate.drafter` says for the drafter that was trained with the same recipe."""


def run_drafter(recipe: Recipe) -> Path:
    """Where `ocrquant drafter train` leaves the drafter of a recipe."""
    section = recipe.drafter or DrafterSection()
    return Path(recipe.output) / DRAFTER_FOLDER / section.design


def evaluated_drafter(recipe: Recipe) -> Path | None:
    """The folder of the drafter that the evaluation reads with; None where it names none.

    Raises:
        ArtifactError: It is the one of the run, which is not trained yet.
        ModelError: There is no such folder.
    """
    name = recipe.evaluate.drafter
    if name != RUN:
        return None if name is None else drafter_folder(name)
    folder = run_drafter(recipe)
    if not (folder / WEIGHTS).is_file():
        raise ArtifactError(
            folder,
            expected="the drafter that evaluate.drafter: run names",
            given="none",
            fix="run ocrquant drafter train with the same recipe first, then this command again",
        )
    return folder


def check_drafter(recipe: Recipe, model: Path) -> str | None:
    """Refuses a drafter that the evaluation could not use, and says in a line what it is.

    That of the run may be missing: it is trained once the checkpoint is exported.

    Args:
        recipe: Resolved recipe.
        model: Folder of the unquantized model.

    Raises:
        ModelError: The runtime does not run the model, there is no such drafter, or it was made for another
            model.
    """
    name = recipe.evaluate.drafter
    if name is None:
        return None
    config = read_json(model / "config.json")
    names = config.get("architectures") or ["none"]
    if names[0] not in registry.FAMILIES:
        raise ModelError(
            "evaluate.drafter",
            expected=f"a model that the runtime runs: {', '.join(registry.FAMILIES)}",
            given=names[0],
            fix="remove evaluate.drafter",
        )
    if name == RUN and not (run_drafter(recipe) / WEIGHTS).is_file():
        return f"{RUN}, not trained yet: ocrquant drafter train makes it once the checkpoint is exported"
    folder = evaluated_drafter(recipe)
    assert folder is not None
    drafter = DrafterFolder(folder)
    _check_sizes(drafter, folder, config)
    with CheckpointSource(model, config) as weights:
        drafter.require(weights, config, model)
    made = drafter.config
    design = "DFlash2" if made.is_second else "DFlash"
    return f"{name}: {design}, {made.num_hidden_layers} layers, blocks of {made.block_size}"


def _check_sizes(drafter: DrafterFolder, folder: Path, config: dict[str, object]) -> None:
    if not (folder / WEIGHTS).is_file():
        fix = "take a folder that `ocrquant drafter train` wrote"
        raise ModelError(folder / WEIGHTS, expected="the weights of the drafter", given="none", fix=fix)
    inner = config.get("text_config", config)
    assert isinstance(inner, dict)
    for key in ("hidden_size", "vocab_size"):
        own = getattr(drafter.config, key)
        if own != inner.get(key):
            raise ModelError(
                f"drafter {folder}: {key}",
                expected=f"{inner.get(key)}, that of the model",
                given=own,
                fix="train a drafter for this model: ocrquant drafter train",
            )
