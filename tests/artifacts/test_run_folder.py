import json
import multiprocessing
from typing import ClassVar

import pytest
import torch

from ocrquant.artifacts import run_folder
from ocrquant.artifacts.base import Artifact, FileRecord
from ocrquant.artifacts.digests import sha256_file
from ocrquant.artifacts.run_folder import RunFolder
from ocrquant.errors import ArtifactError, OutputError, RunFolderError

RECIPE = {"recipe_digest": "1" * 64, "recipe_text": "model: {path: pico}\npages: {seed: 0}\n"}
OTHER = {
    "recipe_digest": "2" * 64,
    "recipe_text": "model: {path: pico}\npages: {seed: 1}\ngate: {max_kl: 1}\n",
}
INPUTS = {"model": "a" * 64, "pages": "b" * 64}


class Thing(Artifact):
    FILE_NAME: ClassVar[str] = "thing.json"
    STAGE: ClassVar[str] = "things"

    value: int
    tensors: FileRecord | None = None

    def files(self):
        return {"thing.safetensors": self.tensors} if self.tensors else {}


def open_run(path, **options):
    return RunFolder.open(path, **{**RECIPE, **options})


def save_thing(run, value=1):
    record = run.save_tensors("thing.safetensors", {"x": torch.arange(4)})
    return run.save(Thing(inputs=INPUTS, value=value, tensors=record))


def test_new_folder_keeps_the_recipe_and_opens_again(tmp_path):
    path = tmp_path / "runs" / "x"
    with open_run(path):
        assert (path / "recipe.yaml").read_text() == RECIPE["recipe_text"]
    with open_run(path) as run:
        assert run.path == path


def test_folder_of_another_recipe_is_refused_and_says_where_they_differ(tmp_path):
    open_run(tmp_path / "x").close()
    with pytest.raises(
        RunFolderError, match=r"differs in gate\.max_kl, pages\.seed; name another output folder"
    ):
        open_run(tmp_path / "x", **OTHER)
    assert (tmp_path / "x" / "recipe.yaml").read_text() == RECIPE["recipe_text"]
    open_run(tmp_path / "x").close()


def test_adopted_folder_keeps_its_artefacts_and_takes_the_new_recipe(tmp_path):
    with open_run(tmp_path) as run:
        save_thing(run)
    with open_run(tmp_path, **OTHER, adopt=True) as run:
        assert run.is_current(Thing, INPUTS)
    with pytest.raises(RunFolderError):
        open_run(tmp_path)
    open_run(tmp_path, **OTHER).close()


def test_folder_with_other_files_is_refused_untouched(tmp_path, names):
    for name in ("thesis.tex", ".draft.7.part"):
        (tmp_path / name).write_text("mine")
    with pytest.raises(RunFolderError, match=r"other files \(thesis\.tex\)"):
        open_run(tmp_path, adopt=True)
    assert names(tmp_path) == [".draft.7.part", "thesis.tex"]


@pytest.mark.parametrize("num_files", [0, 1, 2, 3])
def test_killed_opening_is_repeated(tmp_path, num_files):
    # The order in which an opening creates its files.
    leftovers = [(".lock", ""), (".recipe.yaml.7.part", "half"), ("recipe.yaml", OTHER["recipe_text"])]
    for name, text in leftovers[:num_files]:
        (tmp_path / name).write_text(text)
    open_run(tmp_path).close()
    assert (tmp_path / "recipe.yaml").read_text() == RECIPE["recipe_text"]


def test_second_opening_is_refused_while_the_first_lives(tmp_path):
    with open_run(tmp_path), pytest.raises(RunFolderError, match="another ocrquant is using"):
        open_run(tmp_path)
    open_run(tmp_path).close()


def _hold(path, is_open):
    run = open_run(path)
    is_open.set()
    is_open.wait()
    multiprocessing.Event().wait()
    run.close()


def test_lock_holds_between_processes_and_dies_with_its_owner(tmp_path):
    context = multiprocessing.get_context("fork")
    is_open = context.Event()
    process = context.Process(target=_hold, args=(tmp_path, is_open))
    process.start()
    assert is_open.wait(30)
    with pytest.raises(RunFolderError, match="another ocrquant is using"):
        open_run(tmp_path)
    process.kill()
    process.join()
    open_run(tmp_path).close()


def test_refused_opening_gives_the_lock_back(tmp_path):
    open_run(tmp_path).close()
    with pytest.raises(RunFolderError, match="differs"):
        open_run(tmp_path, **OTHER)
    open_run(tmp_path).close()


def test_opening_removes_what_a_killed_process_left(tmp_path):
    open_run(tmp_path).close()
    (tmp_path / ".thing.json.7.part").write_text("half")
    open_run(tmp_path).close()
    assert not (tmp_path / ".thing.json.7.part").exists()


def test_stage_is_current_until_something_that_it_depends_on_changes(tmp_path):
    with open_run(tmp_path) as run:
        assert not run.is_current(Thing, INPUTS)
        save_thing(run)
        assert run.is_current(Thing, dict(reversed(INPUTS.items())))
        assert not run.is_current(Thing, INPUTS | {"pages": "c" * 64})
        assert not run.is_current(Thing, {"model": INPUTS["model"]})
        assert not run.is_current(Thing, INPUTS | {"more": "c" * 64})


@pytest.mark.parametrize("change", ["missing", "shorter"])
def test_stage_without_its_files_is_not_current(tmp_path, change):
    with open_run(tmp_path) as run:
        save_thing(run)
        file = tmp_path / "thing.safetensors"
        file.unlink() if change == "missing" else file.write_bytes(file.read_bytes()[:-1])
        assert not run.is_current(Thing, INPUTS)


def test_stage_of_another_version_is_not_current(tmp_path, monkeypatch):
    with open_run(tmp_path) as run:
        path = save_thing(run)
        monkeypatch.setattr(run_folder, "__version__", "99.0")
        assert not run.is_current(Thing, INPUTS)
        monkeypatch.undo()
        data = json.loads(path.read_text())
        path.write_text(json.dumps(data | {"schema_version": 0, "key_of_long_ago": 1}))
        assert not run.is_current(Thing, INPUTS)


def test_stage_that_a_person_broke_is_named_and_not_overwritten(tmp_path):
    with open_run(tmp_path) as run:
        path = save_thing(run)
        path.write_text(path.read_text().replace('"value": 1', '"value": one'))
        with pytest.raises(ArtifactError, match="thing.json"):
            run.is_current(Thing, INPUTS)


def test_repeating_a_stage_gives_the_same_bytes(tmp_path):
    with open_run(tmp_path) as run:
        first = {path.name: path.read_bytes() for path in (save_thing(run), tmp_path / "thing.safetensors")}
        run.record_timing("things", 1.25, num_pages=3)
        again = {path.name: path.read_bytes() for path in (save_thing(run), tmp_path / "thing.safetensors")}
    assert first == again


def test_artifact_is_loaded_and_digested(tmp_path):
    with open_run(tmp_path) as run:
        with pytest.raises(ArtifactError, match="run the stage `things` first"):
            run.load(Thing)
        path = save_thing(run, value=5)
        assert run.load(Thing).value == 5
        assert run.digest(Thing) == sha256_file(path)


def test_partial_stage_lives_inside_the_folder_between_openings(tmp_path):
    with open_run(tmp_path) as run:
        run.partial("things", INPUTS).journal("pages").append({"n": 1})
    with open_run(tmp_path) as run:
        stage = run.partial("things", INPUTS)
        assert stage.journal("pages").read() == [{"n": 1}]
        stage.discard()
        assert run.partial("things", INPUTS).journal("pages").read() == []


def test_timings_are_lines_beside_the_artefacts(tmp_path):
    with open_run(tmp_path) as run:
        run.record_timing("things", 1.23456, num_pages=3)
        run.record_timing("others", 2)
    lines = [json.loads(line) for line in (tmp_path / "timings.jsonl").read_text().splitlines()]
    assert lines == [{"stage": "things", "seconds": 1.235, "num_pages": 3}, {"stage": "others", "seconds": 2}]


def test_folder_that_cannot_be_made(tmp_path, as_nobody):
    (tmp_path / "file").write_text("x")
    with pytest.raises(OutputError, match="name an output folder"):
        open_run(tmp_path / "file" / "x")
    with pytest.raises(OutputError, match="name an output folder, not a file"):
        open_run(tmp_path / "file")
    tmp_path.chmod(0o555)
    assert as_nobody(lambda: open_run(tmp_path / "x")).startswith("OutputError: ")
