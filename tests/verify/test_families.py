"""What is exported of every family has no error, against its source and in both formats."""

from __future__ import annotations

import pytest

from ocrquant.checkpoint import FILE_FORMATS
from ocrquant.export import write_checkpoint
from ocrquant.verify import Severity, verify_checkpoint
from tests.consumers.making import deal
from tests.export.conftest import round_model
from tests.families.making import TINY, make_folder


@pytest.mark.slow
@pytest.mark.parametrize("name", TINY)
def test_exports_of_a_family_are_sound(name, tmp_path):
    model = round_model(make_folder(name, tmp_path / "model"), tmp_path / "run")
    for file_format in FILE_FORMATS:
        with model.rounding.open_weights(model.run) as weights:
            write_checkpoint(
                model.source,
                tmp_path / file_format,
                model_map=model.model_map,
                groups=deal(model.model_map, ("nvfp4", "fp8", "bf16")),
                weights=weights,
                kv=model.rounding.kv,
                file_format=file_format,
                max_shard_bytes=10**9,
            )
        findings = verify_checkpoint(tmp_path / file_format, source=model.source)
        errors = [item for item in findings.items if item.severity is Severity.ERROR]
        assert errors == []
        assert findings.codes() <= {"server-not-modelled"}
