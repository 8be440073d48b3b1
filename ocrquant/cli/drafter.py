"""``ocrquant drafter``: drafters for speculative decoding. Knows options; holds no logic."""

from __future__ import annotations

import typer

from ocrquant.cli.options import Adopt, Device, Overrides, RecipeFile, reported

__all__ = ["drafter_app"]

drafter_app = typer.Typer(help="Drafters for speculative decoding.", no_args_is_help=True)


@drafter_app.callback()
def _drafter() -> None:
    """Drafters for speculative decoding."""


@drafter_app.command("train")
@reported
def train(
    recipe: RecipeFile,
    overrides: Overrides = None,
    device: Device = None,
    adopt: Adopt = False,
) -> None:
    """Train a drafter on what the exported checkpoint of a recipe reads. Resumes where it was stopped."""
    from ocrquant.pipeline.drafter import train_drafter
    from ocrquant.recipe import load_recipe

    print(train_drafter(load_recipe(recipe, overrides or ()), device=device, adopt=adopt))
