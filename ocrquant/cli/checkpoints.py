"""The commands that look at a finished checkpoint, whoever wrote it.

Knows options; holds no logic.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ocrquant.cli.options import Server, reported

__all__ = ["inspect", "verify"]

Checkpoint = Annotated[str, typer.Argument(metavar="CHECKPOINT", help="Its folder, whoever wrote it.")]


@reported
def verify(
    checkpoint: Checkpoint,
    against: Annotated[
        str | None,
        typer.Option(metavar="SOURCE", help="Model that it was made from: compares weights and logits."),
    ] = None,
    plan: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Run folder or assignment.yaml that it was made from.")
    ] = None,
    target: Server = None,
    page: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Image for the logits; else a drawn line of text.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print all findings as JSON.")] = False,
) -> None:
    """Check a checkpoint as servers read it: files, tensors, scales, names. Ends with 32 on an error."""
    import json

    from ocrquant.pipeline.verification import verify as verify_folder

    findings = verify_folder(checkpoint, source=against, plan=plan, target=target, page=page)
    print(json.dumps(findings.to_json(), indent=1) if as_json else findings.render())
    findings.raise_for_errors()


@reported
def inspect(
    checkpoint: Checkpoint,
    as_json: Annotated[bool, typer.Option("--json", help="Print the tables as JSON.")] = False,
) -> None:
    """Show what a checkpoint holds: kinds, schemes, bits and bytes, and what runs on which machine."""
    import json

    from ocrquant.adapters import model_folder
    from ocrquant.verify import inspect_checkpoint

    found = inspect_checkpoint(model_folder(checkpoint))
    print(json.dumps(found.to_json(), indent=1) if as_json else found.render())
