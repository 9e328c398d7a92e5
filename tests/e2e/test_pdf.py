"""A report as PDF: printed by a real Chromium, and by programs that fail in every way."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import report_views
from trainrig.errors import UnavailableError
from trainrig.report.render.pdf import BROWSERS, find_browser, to_pdf
from trainrig.report.run_report import render_html


@pytest.fixture
def only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with nothing but what a test puts there."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def program(folder: Path, body: str, name: str = "chromium") -> str:
    """A program that is called as a browser is; ``target`` is the file it is to write."""
    path = folder / name
    head = (
        f"#!{sys.executable}\nimport os, sys, time\n"
        "flag = '--print-to-pdf='\n"
        "target = next(w[len(flag):] for w in sys.argv if w.startswith(flag))\n"
    )
    path.write_text(head + body)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@pytest.mark.needs("chromium", "pdftotext")
def test_chromium_prints_the_whole_page(trainrig, tmp_path: Path) -> None:
    target = tmp_path / "report.pdf"
    code, _, err = trainrig("demo", "--pdf", str(target))
    assert code == 0 and str(target) in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.pdf"]
    text = subprocess.run(
        ["pdftotext", "-layout", target, "-"], check=True, capture_output=True, text=True
    ).stdout
    assert "RTX 3090 Ti" in text and "Layers by batch" in text
    pages = text.split("\f")[:-1]
    assert len(pages) > 2
    # Each page is numbered, and no page is empty but for its number.
    for number, page in enumerate(pages, start=1):
        assert re.search(rf"\b{number} / {len(pages)}\b", page)
        assert len(page.split()) > 8


@pytest.mark.needs("chromium", "pdftotext")
def test_a_long_table_goes_on_with_its_heads_and_loses_no_row(tmp_path: Path) -> None:
    from trainrig.report import document as doc
    from trainrig.report.render.html import to_html

    table = doc.table(
        range(120),
        doc.column("number", lambda row: f"row{row:03}"),
        doc.words("what", lambda row: "a case with a name of some length"),
    )
    page = to_html(doc.Document(title="long", blocks=(doc.Section("Rows", (table,)),)))
    target = tmp_path / "long.pdf"
    target.write_bytes(to_pdf(page, find_browser()))
    text = subprocess.run(
        ["pdftotext", "-layout", target, "-"], check=True, capture_output=True, text=True
    ).stdout
    assert re.findall(r"row\d{3}", text) == [f"row{row:03}" for row in range(120)]
    pages = text.split("\f")[:-1]
    assert len(pages) > 1
    assert all("number" in page for page in pages if "row" in page)


def test_without_a_browser_it_says_what_to_install(trainrig, only: Path, tmp_path: Path) -> None:
    target = tmp_path / "report.pdf"
    code, out, err = trainrig("demo", "--pdf", str(target))
    assert code == 3 and out == "" and not target.exists()
    assert "Chrom" in err.splitlines()[0] and "install" in err and "--html" in err


@pytest.mark.parametrize("name", BROWSERS)
def test_it_is_found_under_its_usual_names(only: Path, name: str) -> None:
    path = program(only, "", name)
    assert find_browser() == path


@pytest.mark.parametrize(
    "body",
    [
        "sys.exit(1)",
        "print('no display', file=sys.stderr); sys.exit(5)",
        "pass",
        "open(target, 'w').write('<html>')",
        "open(target, 'wb').write(b'%PDF-1.7 cut off')",
        "open(target, 'wb').write(b'%PDF-1.7 %%EOF'); sys.exit(1)",
        "os.kill(os.getpid(), 9)",
    ],
)
def test_a_browser_that_fails_leaves_nothing(
    trainrig, only: Path, tmp_path: Path, body: str
) -> None:
    program(only, body)
    target = tmp_path / "out" / "report.pdf"
    target.parent.mkdir()
    code, _, err = trainrig("demo", "--pdf", str(target))
    assert code == 3 and "wrote no PDF" in err and "--html" in err
    assert list(target.parent.iterdir()) == []


def test_a_browser_that_hangs_is_killed_with_what_it_started(only: Path, tmp_path: Path) -> None:
    held = tmp_path / "held"
    os.mkfifo(held)
    reader = os.open(held, os.O_RDONLY | os.O_NONBLOCK)
    child = [sys.executable, "-c", "import time; time.sleep(600)"]
    body = (
        "import subprocess\n"
        f"end = os.open({str(held)!r}, os.O_WRONLY)\n"
        f"subprocess.Popen({child!r}, pass_fds=[end])\n"
        "open(target, 'wb').write(b'%PDF-1.7 half')\n"
        "time.sleep(600)\n"
    )
    with pytest.raises(UnavailableError, match="within"):
        to_pdf("<p>", program(only, body), timeout=1.0)
    os.set_blocking(reader, True)
    assert os.read(reader, 1) == b""  # the end comes when nobody holds the other end any more
    os.close(reader)


def test_a_file_that_was_there_stays_where_the_browser_fails(
    trainrig, only: Path, tmp_path: Path
) -> None:
    program(only, "sys.exit(1)")
    target = tmp_path / "report.pdf"
    target.write_text("the one of before")
    assert trainrig("demo", "--pdf", str(target))[0] == 3
    assert target.read_text() == "the one of before"


def test_where_the_pdf_cannot_be_written_it_says_so(trainrig, only: Path, tmp_path: Path) -> None:
    program(only, "open(target, 'wb').write(b'%PDF-1.7 %%EOF')")
    code, _, err = trainrig("demo", "--pdf", str(tmp_path / "no" / "report.pdf"))
    assert code == 3 and "cannot write" in err


@pytest.mark.needs("chromium")
@pytest.mark.parametrize("language", ["en", "zh-CN"])
def test_other_documents_are_printed_too(trainrig, tmp_path: Path, language: str) -> None:
    target = tmp_path / "grid.pdf"
    words = ("predict", "matmul", "--on", "RTX 4090", "--pdf", str(target), "--lang", language)
    assert trainrig(*words)[0] == 0
    assert target.read_bytes().startswith(b"%PDF-")


def test_the_print_styles_cut_no_row() -> None:
    page = render_html([report_views.gpu_view()])
    printed = page.partition("@media print{")[2]
    assert re.search(r"\btr\b[^{}]*\{break-inside:avoid", printed)
    assert "table-header-group" in printed
