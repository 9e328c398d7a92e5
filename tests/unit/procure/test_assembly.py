"""The checklist names this build's own parts, slots and watts, in an order that saves work."""

from __future__ import annotations

import json
from pathlib import Path

import tomli_w
from tests.unit.procure.test_build_rules import FRAME, ONE, PAIR, SERVER, changed, checked

from trainrig.procure.assembly import as_markdown, steps_of


def test_measuring_follows_the_work() -> None:
    text = as_markdown(checked(SERVER))
    order = ("memtest86+", "`trainrig inspect`: processor", "One card alone", "--budget")
    places = [text.index(word) for word in (*order, "4 GPUs", "A burn", "`trainrig bundle`")]
    assert places == sorted(places)


def test_it_speaks_of_this_build() -> None:
    text = as_markdown(checked(PAIR))
    assert "NVLink bridge RTX 3090, 4 slots" in text and "nvidia-smi nvlink" in text
    assert "by riser" in as_markdown(checked(FRAME))
    one = as_markdown(checked(ONE))
    assert "840 W" in one and "12V-2x6" in one and "not known of" in one
    assert "bridge" not in one and "The same with each other card" not in one


def test_a_list_that_is_not_legal_says_so_first() -> None:
    text = as_markdown(checked(changed(ONE, psu=None)))
    assert "not legal" in text.split("## 1.")[0] and "missing-part" in text


def test_static_electricity_comes_first_and_the_burn_is_trainrig_s_own() -> None:
    text = as_markdown(checked(ONE))
    table = text.split("## 3.")[1]
    assert table.splitlines()[2].startswith("- [ ] Static electricity")
    assert "`trainrig burn --budget 1h`" in text and "gpu-burn" not in text


def test_every_stage_has_something_to_do() -> None:
    assert all(stage.items for stage in steps_of(checked(changed(ONE, gpu=None))))


def test_the_verb_writes_markdown(trainrig, tmp_path: Path) -> None:
    file, out = tmp_path / "machine.toml", tmp_path / "assembly.md"
    file.write_text(tomli_w.dumps(ONE))
    code, text, _ = trainrig("build", "checklist", str(file))
    assert code == 0 and text.startswith("# Assembly: one 4090")
    code, _, _ = trainrig("build", "checklist", str(file), "--out", str(out))
    assert code == 0 and out.read_text() == text
    code, text, _ = trainrig("build", "checklist", str(file), "--json")
    assert json.loads(text)[0]["title"] == "Before you order"
