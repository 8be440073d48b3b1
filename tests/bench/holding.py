"""The fault that the memory of an export is watched for, in a module that another process can import."""

from ocrquant.bench.export import export_made
from ocrquant.checkpoint import CheckpointReader


def export_and_hold(root, file_format):
    """Exports while every tensor of the source stays in memory."""
    with CheckpointReader(root / "source") as reader:
        held = [reader.read(name) for name in reader.specs]
    export_made(root, file_format)
    return held
