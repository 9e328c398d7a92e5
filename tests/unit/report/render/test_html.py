"""The HTML file: one, small, offline, well formed, and deaf to what names in records say."""

from __future__ import annotations

import dataclasses
import html.parser
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import report_views as made
from experiment_views import experiments_view
from trainrig.record import RunView
from trainrig.report.render.html import commands
from trainrig.report.run_report import render_html

VIEWS = {
    "one GPU": made.gpu_view,
    "layers": made.layers_view,
    "eight GPUs": lambda: made.gpu_view(8, slow_card=3),
    "no GPU": made.cpu_view,
    "cut off": made.cut_off_view,
    "hostile": made.hostile_view,
    "experiments": experiments_view,
    "ten thousand records": made.large_view,
}
VOID = {"meta", "br", "hr", "img", "input", "link", "wbr"}


class Balance(html.parser.HTMLParser):
    """Finds elements that are closed in the wrong order, and those never closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.faults: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.faults.append(f"</{tag}> at {self.getpos()}")


def parse(text: str) -> Balance:
    parser = Balance()
    parser.feed(text)
    parser.close()
    return parser


@pytest.fixture(scope="module", params=VIEWS)
def page(request: pytest.FixtureRequest) -> str:
    return render_html([VIEWS[request.param]()])


def test_elements_are_balanced(page: str) -> None:
    parser = parse(page)
    assert (parser.faults, parser.open) == ([], [])


def test_an_unbalanced_page_is_found() -> None:
    assert parse("<div><p></div>").faults
    assert parse("<div>").open


def test_size(page: str) -> None:
    assert len(page.encode()) < 2_000_000


def test_nothing_is_loaded_and_nothing_runs(page: str) -> None:
    for tag, attributes in parse(page).seen:
        assert tag not in ("script", "link", "iframe", "object", "embed", "base", "form"), tag
        assert not {"src", "srcset", "data"} & attributes.keys(), (tag, attributes)
        assert str(attributes.get("href", "#")).startswith("#"), (tag, attributes)
        assert not any(name.startswith("on") for name in attributes), (tag, attributes)
    style = page[page.index("<style>") : page.index("</style>")]
    assert not re.search(r"url\(|@import|https?:", style)


def test_hostile_names_stay_text() -> None:
    text = render_html([made.hostile_view()])
    assert "<script" not in text
    assert "&lt;script&gt;" in text
    assert "{{ 7*7 }}" in text  # printed as it is, not evaluated


def test_an_unescaped_name_would_be_found() -> None:
    """The check above looks for what a template without escaping would print."""
    assert "<script" in made.hostile_view().name


def test_published_figures_wear_a_banner() -> None:
    view = dataclasses.replace(made.gpu_view(), config={"origin": "published figures"})
    assert 'class="banner"' in render_html([view])
    assert 'class="banner"' not in render_html([made.gpu_view()])


def test_links_between_gpus_are_unverified() -> None:
    assert "unverified on hardware" in render_html([made.gpu_view(2)])
    assert "unverified on hardware" not in render_html([made.gpu_view(1)])


def test_disturbed_and_skipped_points_are_greyed_and_say_why() -> None:
    text = render_html([made.cpu_view()])
    muted = re.findall(r'<details class="pt t-dim">.*?</details>', text, re.DOTALL)
    assert len(muted) == 2
    assert "1.9 of 2 CPUs taken by others" in muted[0]
    assert "would take 21 s, 14 s are left" in muted[1].replace("\u00a0", " ")


def test_two_runs_stand_side_by_side() -> None:
    views = [made.gpu_view(), made.cpu_view()]
    text = render_html(views)
    assert text.count('<span class="badge') == 2
    assert all(view.name in text for view in views)
    assert "Run beside run" not in render_html(views[:1])


def test_commands_are_set_apart_from_prose() -> None:
    assert commands("stop it, then: trainrig qualify --resume RUN") == [
        (False, "stop it, then: "),
        (True, "trainrig qualify --resume RUN"),
    ]
    assert commands("reseat the card") == [(False, "reseat the card")]


def test_rendering_loads_no_torch_and_no_plotting_library(tmp_path: Path) -> None:
    code = (
        "import sys; from trainrig.cli.demo import command; "
        "command.main(['--html', sys.argv[1]], standalone_mode=False); "
        "heavy = {'torch', 'altair', 'vl_convert', 'scipy', 'numpy', 'trainrig.measure'}; "
        "sys.exit(', '.join(heavy & set(sys.modules)) or 0)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "demo.html")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr


def test_report_reads_a_run_that_was_cut_off(tmp_path: Path) -> None:
    from trainrig.cli.report import command

    (tmp_path / "run.toml").write_text("schema = 1\n")
    (tmp_path / "records.jsonl").write_text('{"schema":1,"id":"torn')
    target = tmp_path / "out.html"
    command.main([str(tmp_path), "--html", str(target)], standalone_mode=False)
    text = target.read_text()
    assert "the last record was cut off while it was written" in text
    assert "INCOMPLETE" in text


def test_a_pipe_is_written_into_and_not_replaced(tmp_path: Path) -> None:
    """As root, renaming a file over /dev/null would take it from the whole machine."""
    from trainrig.cli.report import show
    from trainrig.cli.verb import Pages

    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
    try:
        show([RunView(name="empty")], Pages(html=pipe), as_json=False)
        assert os.read(reader, 1 << 16).startswith(b"<!DOCTYPE html>")
    finally:
        os.close(reader)
    assert pipe.is_fifo()


def test_every_view_has_a_title() -> None:
    view = RunView(name="empty")
    assert "<title>trainrig: empty</title>" in render_html([view])
