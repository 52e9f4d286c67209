"""The lessons run as they stand, their exercises can be answered, and what is stored shows what they show."""

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat import NotebookNode

LESSONS = sorted((Path(__file__).parent.parent.parent / "examples" / "course").glob("*.ipynb"))

each_lesson = pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.stem)


def read(lesson: Path) -> NotebookNode:
    return nbformat.reads(lesson.read_text(), as_version=4)  # type: ignore[no-any-return, no-untyped-call]


def tagged(notebook: NotebookNode, tag: str) -> tuple[int, NotebookNode]:
    """The one cell with a tag, and its number."""
    (found,) = [
        (number, cell) for number, cell in enumerate(notebook.cells) if tag in cell.metadata.get("tags", [])
    ]
    return found


def printed(cell: NotebookNode) -> str:
    return "".join(output.get("text", "") for output in cell.get("outputs", []))


def solution_of(notebook: NotebookNode) -> str:
    (code,) = re.findall(r"```python\n(.*?)```", tagged(notebook, "solution")[1].source, flags=re.S)
    return str(code)


@each_lesson
def test_stored_lesson_shows_its_outputs(lesson: Path) -> None:
    notebook = read(lesson)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    outputs = [output for cell in code for output in cell.outputs]
    assert all(cell.execution_count for cell in code), "run `make lessons`"
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert not any(output.output_type == "error" or output.get("name") == "stderr" for output in outputs)
    assert "Not answered yet." in printed(tagged(notebook, "check")[1])


@pytest.mark.slow
@each_lesson
def test_lesson_runs_and_its_exercise_can_be_answered(lesson: Path) -> None:
    notebook = read(lesson)
    number, exercise = tagged(notebook, "exercise")
    judged, check = tagged(notebook, "check")
    client = NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(lesson.parent)}})
    with client.setup_kernel():
        for index, cell in enumerate(notebook.cells):
            client.execute_cell(cell, index)
        assert "Not answered yet." in printed(check)
        for answer, verdict in (("answer = 'no idea'", "Not yet"), (solution_of(notebook), "Right.")):
            exercise.source = answer
            client.execute_cell(exercise, number)
            client.execute_cell(check, judged)
            assert verdict in printed(check)
