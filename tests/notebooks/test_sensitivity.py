"""The notebook runs on a real run folder, says what it should, is committed clean and holds no logic."""

import ast
from copy import deepcopy
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
WIDGET = "application/vnd.jupyter.widget-view+json"
LOGIC = (
    ast.For,
    ast.While,
    ast.If,
    ast.IfExp,
    ast.FunctionDef,
    ast.ClassDef,
    ast.Lambda,
    ast.ListComp,
    ast.SetComp,
    ast.DictComp,
    ast.GeneratorExp,
    ast.Try,
    ast.With,
)


def read(path):
    return nbformat.read(path, as_version=4)


def leftovers(notebook):
    """What running it left in a notebook."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    found = [cell.id for cell in cells if cell.outputs or cell.execution_count is not None]
    return found + [key for key in notebook.metadata if key not in ("kernelspec", "language_info")]


def logic(notebook):
    """Sources of the statements that do more than call the package."""
    cells = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    return [source for source in cells if any(isinstance(n, LOGIC) for n in ast.walk(ast.parse(source)))]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_notebook_is_valid_and_committed_without_outputs(path):
    notebook = read(path)
    nbformat.validate(notebook)
    assert leftovers(notebook) == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_cells_are_calls(path):
    assert logic(read(path)) == []


def test_planted_outputs_and_logic_are_found():
    notebook = read(NOTEBOOKS[0])
    code = [index for index, cell in enumerate(notebook.cells) if cell.cell_type == "code"]
    for change in ({"outputs": [nbformat.v4.new_output("stream", text="x")]}, {"execution_count": 1}):
        used = deepcopy(notebook)
        used.cells[code[2]].update(change)
        assert leftovers(used) == [used.cells[code[2]].id]
    used = deepcopy(notebook)
    used.metadata["widgets"] = {}
    assert leftovers(used) == ["widgets"]
    for source in ("x = [i for i in range(3)]", "if RUN:\n    pass", "f = lambda: 1"):
        used.cells[code[1]].source = source
        assert logic(used) == [source]


@pytest.fixture(scope="module")
def executed(pico_run):
    notebook = read(ROOT / "notebooks/sensitivity.ipynb")
    (parameters,) = [c for c in notebook.cells if "parameters" in c.metadata.get("tags", [])]
    assert parameters.source.startswith("RUN = ")
    parameters.source = f"RUN = {str(pico_run)!r}"
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(ROOT / "notebooks")}}).execute()
    return notebook


def outputs(notebook, word):
    """Outputs of the one cell whose source holds a word."""
    (cell,) = [
        c for c in notebook.cells if c.cell_type == "code" and word in c.source and "import" not in c.source
    ]
    return cell.outputs


@pytest.mark.slow
@pytest.mark.parametrize("word", ["sensitivity_heat_map", "assignment_strip", "pareto_front", "pages_behind"])
def test_pictures_are_shown(executed, word):
    (shown,) = outputs(executed, word)
    assert shown.data["image/png"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("word", "column"),
    [("scores.head", "standard_error"), ("changes_frame", "extra_loss"), ("by_page.to", "share")],
)
def test_frames_are_shown(executed, word, column):
    (shown,) = outputs(executed, word)
    assert f"<th>{column}</th>" in shown.data["text/html"]
    assert "<td>" in shown.data["text/html"]


@pytest.mark.slow
def test_slider_is_a_widget_and_a_picture(executed):
    (shown,) = outputs(executed, "BudgetSlider")
    assert WIDGET in shown.data
    assert shown.data["image/png"]
    assert shown.data["text/plain"].endswith("0 groups differ from the plan.")


@pytest.mark.slow
def test_a_group_is_explained(executed):
    (shown,) = outputs(executed, "explain")
    assert "nats a token over 3 pages" in shown.text


@pytest.mark.slow
def test_no_cell_warns(executed):
    streams = [
        o for c in executed.cells if c.cell_type == "code" for o in c.outputs if o.get("name") == "stderr"
    ]
    assert streams == []
