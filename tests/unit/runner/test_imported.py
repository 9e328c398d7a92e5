"""What an imported run shows: every number that was read, beside what others published of it."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from reports import markdown
from trainrig.analysis.imported_facts import number_text
from trainrig.errors import TrainrigError
from trainrig.importers import ImportHints, importers
from trainrig.lazy import Later
from trainrig.record import Outcome, RunView
from trainrig.report import document as doc
from trainrig.report.render.html import to_html
from trainrig.report.run_report import run_document
from trainrig.runner.imported import import_files
from trainrig.runner.view import view_of
from trainrig.store import read_run

SAMPLES = Path(__file__).resolve().parents[1] / "importers" / "samples"
EVERY = [name for one in importers() for name in one.tested_on]
_A_GAP = re.compile(r"\b(?:None|unknown|null)\b")


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda _: None)


def imported(tmp_path: Path, *paths: Path, hints: ImportHints | None = None) -> RunView:
    done = import_files(paths, tmp_path / "runs", None, hints)
    return view_of(read_run(done.run))


def sample(tmp_path: Path, *names: str, hints: ImportHints | None = None) -> RunView:
    return imported(tmp_path, *(SAMPLES / name for name in names), hints=hints)


def written(tmp_path: Path, text: str, hints: ImportHints | None = None) -> RunView:
    file = tmp_path / "printed.txt"
    file.write_text(text)
    return imported(tmp_path, file, hints=hints)


def texts(value: object) -> Iterator[str]:
    """Every text of a document, wherever it stands."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, tuple | Later):
        for each in value:
            yield from texts(each)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from texts(getattr(value, field.name))


def shown(view: RunView) -> doc.Document:
    return run_document([view])


def in_terminal(view: RunView) -> str:
    """All texts that a terminal gets."""
    blocks = tuple(block for _, block in doc.text_blocks(shown(view).blocks))
    flat = tuple(b for b in blocks if not isinstance(b, doc.Section | doc.Group))
    return "\n".join(texts(flat))


def headline(view: RunView) -> str:
    from trainrig.analysis.run_summary import summarise

    return summarise(view).headline


def check_that_everything_is_shown(view: RunView, html: str) -> None:
    screen, page = in_terminal(view), html.replace("\u00a0", " ")
    points = [record for record in view.records if record.is_point]
    for record in points:
        if record.value is not None:
            text = number_text(record.value, record.unit, record.metric)
            assert text in screen, (record.metric, record.case, text)
            assert text in page
    words = [text for text in texts(shown(view)) if text != "None."]  # of the findings
    assert not [text for text in words if _A_GAP.search(text)]
    if any(record.value is not None for record in points):
        assert not [text for text in words if "No point has a value" in text]


@pytest.mark.parametrize("name", EVERY)
def test_every_number_that_was_read_is_on_the_screen_and_on_the_page(
    name: str, tmp_path: Path
) -> None:
    view = sample(tmp_path, name)
    check_that_everything_is_shown(view, to_html(shown(view)))
    points = [record for record in view.records if record.is_point]

    assert view.verdict is not None
    # Nothing passes without a target or a health test.
    targets = [record for record in view.records if record.kind == "predicted"]
    tests = [p for p in points if p.benchmark == "diagnostic" and p.value is not None]
    if not targets and not tests:
        assert view.verdict.outcome is not Outcome.PASS


# ---- beside published figures


def test_a_burn_stands_beside_published_ones_of_its_card_and_precision(tmp_path: Path) -> None:
    view = sample(tmp_path, "gpu-burn-tensor-cores.txt")
    assert {r.case.get("dtype") for r in view.records if r.benchmark == "burn"} == {"fp16"}
    assert "143.6 and 144.8 TFLOPS on 2 × RTX 4090" in headline(view)
    assert "published for RTX 4090: 146 TFLOPS (fp16" in headline(view)
    assert "146 TFLOPS (1)" in in_terminal(view)


@pytest.mark.parametrize(
    ("mode", "dtype"),
    [("FLOATS", "fp32"), ("DOUBLES", "fp64"), ("DOUBLES, using Tensor Cores", "fp64")],
)
def test_no_burn_is_compared_with_one_in_another_precision(
    mode: str, dtype: str, tmp_path: Path
) -> None:
    text = (SAMPLES / "gpu-burn-tensor-cores.txt").read_text()
    view = written(tmp_path, text.replace("FLOATS, using Tensor Cores", mode))
    assert {r.case["dtype"] for r in view.records if r.benchmark == "burn"} == {dtype}
    assert "published" not in headline(view)


LINE = "100.0%  proc'd: 32568 ({} Gflop/s) - 33534 ({} Gflop/s)   errors: 0 - 0\n"


def test_a_rate_beyond_fp32_and_fp64_is_of_tensor_cores(tmp_path: Path) -> None:
    view = written(tmp_path, LINE.format(118649, 122261), ImportHints(device="A100 40GB"))
    assert "118.6 and 122.3 TFLOPS on 2 × A100 40GB" in headline(view)
    assert "published for A100 40GB: 118.6 TFLOPS (fp16" in headline(view)


def test_a_rate_that_several_precisions_reach_has_none_and_nothing_beside_it(
    tmp_path: Path,
) -> None:
    view = written(tmp_path, LINE.format(15000, 15100), ImportHints(device="A100 40GB"))
    assert "published" not in headline(view)
    assert view.verdict is not None
    (note,) = [f for f in view.verdict.findings if f.id == "import-note"]
    assert "--precision" in note.evidence


def test_a_card_that_no_file_names_can_be_added(tmp_path: Path) -> None:
    view = written(tmp_path, LINE.format(118649, 122261))
    assert "118.6 and 122.3 TFLOPS on 2 GPUs" in headline(view)
    assert view.verdict is not None and view.verdict.outcome is Outcome.INCOMPLETE
    assert any("--on" in finding.evidence for finding in view.verdict.findings)


def test_a_file_that_names_the_cards_names_those_of_the_others(tmp_path: Path) -> None:
    view = sample(tmp_path, "topo-8xa100.txt", "nvidia-smi-q-8xa100.txt")
    assert "8 × " in headline(view) and "not named" not in in_terminal(view)
    alone = sample(tmp_path, "topo-2x4090.txt")
    assert "2 GPUs, not named in the file" in in_terminal(alone)
    added = sample(tmp_path, "topo-2x4090.txt", hints=ImportHints(device="rtx-4090"))
    assert "2 × RTX 4090" in in_terminal(added) and "not named" not in in_terminal(added)


def test_a_collective_stands_beside_those_of_as_many_devices_over_the_same_link(
    tmp_path: Path,
) -> None:
    text = (SAMPLES / "nccl-all-reduce-8xa100.txt").read_text()
    whole = written(tmp_path, text)
    assert "229 GB/s (1)" in in_terminal(whole)
    assert "over NVLink3/NVSwitch" in in_terminal(whole)
    half = "\n".join(line for line in text.splitlines() if not re.search(r"Rank +[4-7] ", line))
    assert "229 GB/s (1)" not in in_terminal(written(tmp_path, half))
    other = text.replace("A100-SXM4-80GB", "A100 80GB PCIe")
    assert other != text and "published for" not in headline(written(tmp_path, other))


def test_pairs_without_peer_access_are_not_set_beside_a_bridge(tmp_path: Path) -> None:
    text = (SAMPLES / "p2p-2x3090ti-nvlink.txt").read_text()
    linked = in_terminal(written(tmp_path, text))
    assert "52.89 GB/s (1)" in linked and "over NVLink bridge" in linked
    slow = re.sub(r"5[23]\.\d+", "6.20", text).replace("101.40", "9.20").replace("101.50", "9.24")
    unlinked = in_terminal(written(tmp_path, slow))
    assert "52.89 GB/s" not in unlinked and "6.23 GB/s (1)" in unlinked


def test_a_training_without_precision_or_model_says_neither(tmp_path: Path) -> None:
    bare = sample(tmp_path, "deepspeed-sft.txt")
    assert headline(bare) == "Trains at 172.4 samples/s."
    named = sample(tmp_path, "deepspeed-sft.txt", hints=ImportHints(model="gpt2-medium"))
    assert headline(named).startswith("Trains gpt2-medium at 172.4 samples/s")


def test_a_training_stands_beside_published_ones_of_its_model_batch_and_precision(
    tmp_path: Path,
) -> None:
    hints = ImportHints(device="RTX 4090")
    view = sample(tmp_path, "hf-bert-large-4090.txt", hints=hints)
    assert "Trains bert-large in fp32 at 4,608 tokens/s, on RTX 4090; published" in headline(view)
    for other in (ImportHints(device="RTX 4090", batch_size=3), ImportHints(device="RTX 3090")):
        without = sample(tmp_path, "hf-bert-large-4090.txt", hints=other)
        assert "published" not in headline(without), "nobody published that one"


# ---- the verdict


def test_ok_without_a_rate_is_no_pass(tmp_path: Path) -> None:
    view = written(tmp_path, "Tested 1 GPUs:\n\tGPU 0: OK\n")
    assert view.verdict is not None
    assert view.verdict.outcome is not Outcome.PASS


def test_far_below_what_others_published_is_no_pass(tmp_path: Path) -> None:
    text = (SAMPLES / "gpu-burn-tensor-cores.txt").read_text()
    slow = re.sub(r"\(14(\d{4}) Gflop/s\)", r"(4\1 Gflop/s)", text)
    view = written(tmp_path, slow)
    assert view.verdict is not None
    assert view.verdict.outcome is Outcome.MEASURED
    assert "slower-than-published" in {finding.id for finding in view.verdict.findings}


def test_a_load_that_computed_nothing_is_a_fault_whatever_its_tool_says(tmp_path: Path) -> None:
    text = (SAMPLES / "gpu-fryer-unhealthy.txt").read_text()
    zero = re.sub(r"681200", "0", text)
    view = written(tmp_path, zero)
    assert view.verdict is not None and view.verdict.outcome is Outcome.FAIL
    assert "nothing-computed" in {finding.id for finding in view.verdict.findings}


def test_the_answer_names_what_was_compared(tmp_path: Path) -> None:
    from trainrig.analysis.answer import Word, answer_of

    fast = answer_of(sample(tmp_path, "gpu-burn-tensor-cores.txt"))
    assert fast.word is Word.NORMAL
    assert "figures that others published of RTX 4090" in fast.comparison
    slow = answer_of(
        sample(tmp_path, "hf-bert-large-4090.txt", hints=ImportHints(device="RTX 4090"))
    )
    assert slow.word is Word.CANNOT_TELL and "published" in slow.reason
    alone = answer_of(sample(tmp_path, "topo-2x4090.txt"))
    assert alone.word is Word.CANNOT_TELL and not alone.compared_with


def test_a_figure_published_of_the_same_run_proves_nothing(tmp_path: Path) -> None:
    from trainrig.analysis.answer import Word, answer_of

    text = (SAMPLES / "gpu-burn-tensor-cores.txt").read_text()
    same = re.sub(r"\(14\d{4} Gflop/s\)", "(146000 Gflop/s)", text)
    view = written(tmp_path, same)
    assert view.verdict is not None
    assert "same-as-published" in {finding.id for finding in view.verdict.findings}
    passed = answer_of(view)
    assert passed.compared_with == ("the answers that its health tests expect",)
    assert passed.reason == "2 health tests passed"
    loads = tuple(record for record in view.records if record.benchmark != "diagnostic")
    verdict = dataclasses.replace(view.verdict, outcome=Outcome.MEASURED)
    alone = answer_of(dataclasses.replace(view, records=loads, verdict=verdict))
    assert alone.word is Word.CANNOT_TELL
    assert "(n = 1)" in alone.comparison and "it may be of this same run" in alone.reason


def test_what_was_not_compared_is_named_and_a_machine_goes_to_the_doctor(tmp_path: Path) -> None:
    from trainrig.analysis.answer import answer_of

    view = sample(tmp_path, "nvidia-smi-q-8xa100.txt")
    assert view.verdict is not None
    (note,) = [finding for finding in view.verdict.findings if finding.id == "machine-state"]
    assert "400 W is the power limit that its data sheet states" in note.evidence
    assert note.fix == "judge them: trainrig doctor nvidia-smi-q-8xa100.txt"
    reason = answer_of(view).reason
    assert "states power, SM clock" in reason or " more of A100" in reason
    assert "these values" not in reason and "power limit" not in reason
    text = (SAMPLES / "nccl-all-reduce-8xa100.txt").read_text()
    ranks = answer_of(written(tmp_path, text.replace("A100-SXM4-80GB", "A100-SXM4-40GB"))).reason
    assert "states bus rate, alg rate and time of A100" in ranks


def test_captured_outputs_show_every_number_and_name_no_gap(captures: Path, tmp_path: Path) -> None:
    for path in sorted(captures.rglob("*")):
        if path.is_file():
            with contextlib.suppress(TrainrigError):
                view = imported(tmp_path, path)
                check_that_everything_is_shown(view, to_html(shown(view)))


def test_the_numbers_of_a_run_are_read_as_text_as_well(tmp_path: Path) -> None:
    text = markdown(sample(tmp_path, "gpu-burn-tensor-cores.txt"))
    assert "143.6 TFLOPS" in text and "146 TFLOPS (1)" in text
