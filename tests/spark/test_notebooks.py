"""The notebooks run top to bottom, unedited, on a root of their own; they are committed without outputs."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

pytestmark = pytest.mark.spark

FOLDER = Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def test_there_are_notebooks() -> None:
    assert [path.name[:2] for path in NOTEBOOKS[:4]] == ["01", "02", "03", "04"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_committed_without_outputs(path: Path) -> None:
    cells = nbformat.read(path, as_version=4).cells
    code = [cell for cell in cells if cell.cell_type == "code"]
    assert code
    assert not any(cell.outputs or cell.execution_count for cell in code)


# A notebook starts a Spark session of its own, which takes long where all cores are busy.
@pytest.mark.timeout(300)
# nbclient and jupyter_client leave sockets and loops to the garbage collector.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from nbclient import NotebookClient

    monkeypatch.setenv("STREAMLOG_ROOT", str(tmp_path / "root"))
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    book = nbformat.read(path, as_version=4)
    client = NotebookClient(
        book, timeout=240, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    )
    # A failing cell raises with its traceback.
    client.execute()
    shown = [out for cell in book.cells for out in cell.get("outputs", [])]
    errors = [out for out in shown if out.output_type == "error"]
    assert shown
    assert not errors
    if "matplotlib" in path.read_text():
        assert any("image/png" in out.get("data", {}) for out in shown)
