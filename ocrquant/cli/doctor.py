"""The command that says what runs here, and why.

Knows options; holds no logic.
"""

from __future__ import annotations

from typing import Annotated

import typer

from ocrquant.cli.options import reported

__all__ = ["doctor"]


@reported
def doctor(
    arch: Annotated[
        str | None,
        typer.Option(metavar="ARCH", help="A GPU that need not be here: sm_90a, sm_100a, ...; else what is."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say what is installed, and for every op and product what computes it on this machine, and why."""
    import json

    from ocrquant.bench.doctor import examine, render

    found = examine(arch)
    print(json.dumps(found, indent=1) if as_json else render(found))
