"""A bundle is data from strangers: changed, newer, hostile and broken ones are refused."""

from __future__ import annotations

import ast
import gzip
import hashlib
import io
import json
import os
import re
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from trainrig.cli import bundle as verb
from trainrig.errors import DataError, StoreError, TrainrigError, UsageError
from trainrig.record import Kind, Outcome, Record, Verdict
from trainrig.store import bundle as module
from trainrig.store import create_run, is_bundle, pack, read_run, unpack

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    with create_run(tmp_path / "runs", "qualify", {"budget_s": 5.0}) as writer:
        writer.append(
            Record(kind=Kind.MEASURED, benchmark="copy", case={}, metric="time", unit="s")
        )
        writer.append_series("gpu0", {"t": 0.0})
        writer.write_machine({"host": "h"})
        writer.write_verdict(Verdict(outcome=Outcome.PASS, reason="it ran"))
        writer.log_path("gpu0").write_text("said\n")
    return writer.path


@pytest.fixture
def packed(run: Path, tmp_path: Path) -> Path:
    pack(run, tmp_path / "run.bundle")
    return tmp_path / "run.bundle"


Entry = tuple[str | tarfile.TarInfo, bytes]


def forge(target: Path, entries: list[Entry]) -> Path:
    """A bundle with a right hash and whatever inside: what a stranger could send."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for what, data in entries:
            entry = tarfile.TarInfo(what) if isinstance(what, str) else what
            if entry.isreg():
                entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return seal(target, gzip.compress(buffer.getvalue(), mtime=0))


def seal(target: Path, payload: bytes) -> Path:
    digest = hashlib.sha256(payload).hexdigest()
    target.write_bytes(f"trainrig-bundle 1 {digest}\n".encode() + payload)
    return target


def test_a_bundle_holds_the_run_whole(run: Path, packed: Path) -> None:
    assert is_bundle(packed)
    whole, again = read_run(run), read_run(packed)
    assert again.path == packed
    for name in ("name", "config", "machine", "records", "series", "verdict", "problems"):
        assert getattr(again, name) == getattr(whole, name)


def test_unpacked_it_is_the_same_folder(run: Path, packed: Path, tmp_path: Path) -> None:
    folder = unpack(packed, tmp_path / "elsewhere" / "deep")
    assert folder == tmp_path / "elsewhere" / "deep" / run.name
    for file in run.rglob("*"):
        if file.is_file() and file.parent.name != "logs":
            assert (folder / file.relative_to(run)).read_bytes() == file.read_bytes()
    with pytest.raises(StoreError, match="exists"):
        unpack(packed, tmp_path / "elsewhere" / "deep")
    assert [path.name for path in (tmp_path / "elsewhere" / "deep").iterdir()] == [run.name]


def test_the_same_run_packs_to_the_same_bytes(
    run: Path, packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time", lambda: 2e9)
    for file in run.rglob("*"):
        file.touch()
    digest = pack(run, tmp_path / "again.bundle")
    assert (tmp_path / "again.bundle").read_bytes() == packed.read_bytes()
    assert digest == hashlib.sha256(packed.read_bytes().partition(b"\n")[2]).hexdigest()


def test_links_logs_hidden_files_and_pipes_stay_outside(run: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s3cret")
    (run / "series" / "leak.jsonl").symlink_to(tmp_path / "secret")
    (run / ".env").write_text("TOKEN=1")
    pack(run, tmp_path / "run.bundle")
    _, files = module.open_bundle(tmp_path / "run.bundle")
    assert sorted(files) == [
        "machine.json",
        "records.jsonl",
        "run.toml",
        "series/gpu0.jsonl",
        "verdict.json",
    ]


def test_a_run_that_was_renamed_packs_under_a_plain_name(run: Path, tmp_path: Path) -> None:
    renamed = run.rename(run.parent / "-my run (µ)")
    pack(renamed, tmp_path / "run.bundle")
    assert read_run(tmp_path / "run.bundle").name == "_my_run____"
    assert len(read_run(tmp_path / "run.bundle").records) == 1


def test_an_existing_file_is_not_replaced(run: Path, packed: Path) -> None:
    before = packed.read_bytes()
    with pytest.raises(StoreError, match="exists"):
        pack(run, packed)
    assert packed.read_bytes() == before


def test_what_is_no_run_is_not_packed(tmp_path: Path) -> None:
    for name in ("absent", "."):
        with pytest.raises(DataError, match="not a run"):
            pack(tmp_path / name, tmp_path / "x.bundle")
    assert list(tmp_path.iterdir()) == []


def test_every_changed_byte_is_refused(packed: Path) -> None:
    whole = packed.read_bytes()
    assert len(whole) < 5000
    for place in range(len(whole)):
        # 0x20 turns the letters of the header into the other case.
        for change in (0x01, 0x20, 0x80) if place < 100 else (1 << place % 8,):
            changed = bytearray(whole)
            changed[place] ^= change
            packed.write_bytes(changed)
            with pytest.raises(DataError):
                read_run(packed)


def test_every_truncation_and_any_addition_is_refused(packed: Path) -> None:
    whole = packed.read_bytes()
    for keep in range(0, len(whole), 7):
        packed.write_bytes(whole[:keep])
        with pytest.raises(DataError):
            read_run(packed)
    packed.write_bytes(whole + b"\n")
    with pytest.raises(DataError, match="was changed after it was packed"):
        read_run(packed)


def test_a_newer_bundle_is_refused_with_the_upgrade(packed: Path) -> None:
    packed.write_bytes(packed.read_bytes().replace(b"trainrig-bundle 1 ", b"trainrig-bundle 2 "))
    with pytest.raises(DataError, match="bundle of version 2") as caught:
        read_run(packed)
    assert caught.value.hint == "upgrade: pip install --upgrade trainrig"


def _special(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type = kind
    entry.linkname = target
    return entry


def _sparse() -> tarfile.TarInfo:
    entry = tarfile.TarInfo("run/huge")
    entry.pax_headers = {
        "GNU.sparse.map": "0,1",
        "GNU.sparse.size": str(1 << 60),
        "GNU.sparse.name": "run/huge",
    }
    return entry


_CONFIG: Entry = ("run/run.toml", b"schema = 1\n")


@pytest.mark.parametrize(
    "entry",
    [
        "../outside",
        "run/../../outside",
        "run/../outside",
        "/outside",
        "run//outside",
        "run/./outside",
        "run/",
        "run",
        "./run/x",
        "run/.hidden",
        "run/a b",
        "run/a\\..\\b",
        "run/a\nb",
        "run/\u2024\u2024/x",
        "run/\uff0e\uff0e/x",
        "run/a/b/c/d/e/f",
        "C:/x",
        "run/x:y",
        "-rf/run.toml",
        "run/--out",
        _special("run/link", tarfile.SYMTYPE, "/etc/passwd"),
        _special("run/link", tarfile.LNKTYPE, "run/run.toml"),
        _special("run/folder", tarfile.DIRTYPE),
        _special("run/device", tarfile.CHRTYPE),
        _special("run/device", tarfile.BLKTYPE),
        _special("run/pipe", tarfile.FIFOTYPE),
        _special("run/cont", tarfile.CONTTYPE),
        _special("run/sparse", tarfile.GNUTYPE_SPARSE),
        _sparse(),
    ],
    ids=lambda entry: entry if isinstance(entry, str) else f"{entry.name} {entry.type!r}",
)
def test_anything_but_a_plain_file_below_the_run_is_refused(
    entry: str | tarfile.TarInfo, tmp_path: Path
) -> None:
    bundle = forge(tmp_path / "x.bundle", [_CONFIG, (entry, b"data")])
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(DataError, match=r"is refused|is damaged"):
        unpack(bundle, tmp_path / "to")
    with pytest.raises(DataError):
        read_run(bundle)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_name_with_a_nul_ends_there_and_goes_no_further(tmp_path: Path) -> None:
    bundle = forge(tmp_path / "x.bundle", [_CONFIG, ("run/x\0/../../outside", b"data")])
    try:
        folder = unpack(bundle, tmp_path / "to")
    except DataError:
        return
    assert {path.name for path in folder.iterdir()} == {"run.toml", "x"}
    assert {path.name for path in tmp_path.iterdir()} == {"x.bundle", "to"}


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ([_CONFIG, ("other/records.jsonl", b"")], "holds 2 runs"),
        ([], "holds 0 runs"),
        ([_CONFIG, _CONFIG], "is refused: it holds 'run/run.toml'"),
    ],
)
def test_it_holds_one_run_and_each_file_once(
    entries: list[Entry], words: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=words):
        read_run(forge(tmp_path / "x.bundle", entries))


def test_a_file_that_is_also_a_folder_leaves_nothing_behind(tmp_path: Path) -> None:
    bundle = forge(tmp_path / "x.bundle", [_CONFIG, ("run/a", b""), ("run/a/b", b"")])
    with pytest.raises(StoreError, match="cannot write"):
        unpack(bundle, tmp_path / "to")
    assert list((tmp_path / "to").iterdir()) == []


def test_a_bomb_is_refused_without_being_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MAX_UNPACKED", 1 << 20)
    bomb = seal(tmp_path / "x.bundle", gzip.compress(b"\0" * (1 << 24)))
    assert bomb.stat().st_size < 20_000
    with pytest.raises(DataError, match="unpacks to more than"):
        read_run(bomb)


def test_a_file_too_large_is_refused_before_it_is_read(
    packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MAX_UNPACKED", packed.stat().st_size - 1)
    monkeypatch.setattr(Path, "read_bytes", lambda _: pytest.fail("it was read"))
    with pytest.raises(DataError, match="larger than"):
        read_run(packed)


@pytest.mark.parametrize(
    ("limit", "words"),
    [("_MAX_RECORDS", "1 records; a bundle may hold 0"), ("_MAX_LINES", "1 lines of series")],
)
def test_more_lines_than_can_be_parsed_are_refused(
    limit: str, words: str, run: Path, packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, limit, 0)
    monkeypatch.setattr("trainrig.store.reader.from_json", lambda _: pytest.fail("it was parsed"))
    with pytest.raises(DataError, match=words):
        read_run(packed)
    with pytest.raises(DataError, match=words):
        pack(run, packed.with_name("again.bundle"))


def test_a_run_too_large_for_a_bundle_is_refused_before_it_is_read(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.truncate(run / "machine.json", module._MAX_UNPACKED)  # sparse: it takes no room
    opened: list[Path] = []
    read = module.read_file
    monkeypatch.setattr(module, "read_file", lambda path: (opened.append(path), read(path))[1])
    with pytest.raises(DataError, match="larger than"):
        pack(run, tmp_path / "x.bundle")
    assert opened == [run / "run.toml"]
    assert not (tmp_path / "x.bundle").exists()


def test_an_empty_folder_of_somebody_elses_is_left_alone(packed: Path, tmp_path: Path) -> None:
    folder = tmp_path / "to" / read_run(packed).name
    folder.mkdir(parents=True)
    with pytest.raises(StoreError, match="exists"):
        unpack(packed, tmp_path / "to")
    assert list((tmp_path / "to").iterdir()) == [folder]
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"not gzip",
        gzip.compress(b""),
        gzip.compress(b"not a tar" * 200),
        gzip.compress(b"x" * 10_000)[:-4],
        gzip.compress(b"x")[:5] + b"\xff" * 50,
    ],
    ids=["empty", "not gzip", "nothing inside", "not a tar", "cut off", "garbled"],
)
def test_a_broken_archive_under_a_right_hash_is_refused(payload: bytes, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"damaged|holds 0 runs"):
        read_run(seal(tmp_path / "x.bundle", payload))


def test_what_is_inside_is_checked_as_a_folder_is(tmp_path: Path) -> None:
    newer = forge(tmp_path / "x.bundle", [("run/run.toml", b"schema = 2\n")])
    with pytest.raises(DataError, match="newer trainrig"):
        read_run(newer)
    external = forge(tmp_path / "y.bundle", [("run/readme", b"")])
    with pytest.raises(DataError, match=r"no run\.toml"):
        read_run(external)


def test_a_full_disk_leaves_no_half_bundle(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    before = sorted(tmp_path.rglob("*"))
    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(StoreError, match="the disk is full"):
        pack(run, tmp_path / "x.bundle")
    assert sorted(tmp_path.rglob("*")) == before


# ---------------------------------------------------------------- nothing is executed

_FORBIDDEN_CALLS = {"eval", "exec", "__import__"}
_FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal", "joblib"}


def _restricts(tree: ast.Module) -> bool:
    """Whether every Unpickler is a base of a class that says itself which classes it finds."""
    bases, own = 0, 0
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node) == "pickle.Unpickler":
            bases += 1
        if isinstance(node, ast.ClassDef) and "pickle.Unpickler" in map(ast.unparse, node.bases):
            names = {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
            own += "find_class" in names
    return bases == own


def dangers(source: str) -> list[str]:
    """Unpickling, evaluation, and loads that unpickle."""
    found = []
    tree = ast.parse(source)
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "pickle"
    }
    # What torch raises for what it refuses to unpickle; and an unpickler that says what it makes.
    catches_only = (
        set() < used <= {"UnpicklingError"} | ({"Unpickler"} if _restricts(tree) else set())
    )
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
            found += [name for name in names if not (name == "pickle" and catches_only)]
        elif isinstance(node, ast.ImportFrom):
            found.append(node.module or "")
        elif isinstance(node, ast.Call):
            words = ast.unparse(node.func)
            loads_tensors = re.fullmatch(r"(torch|np|numpy|pd|pandas)\.(load|read_pickle)", words)
            weights = "weights_only=True" in map(ast.unparse, node.keywords)
            loads_tensors = loads_tensors and not (words == "torch.load" and weights)
            if words in _FORBIDDEN_CALLS or loads_tensors or words.endswith("extractall"):
                found.append(words + "()")
    return [name for name in found if name.endswith("()") or name in _FORBIDDEN_MODULES]


def test_nothing_in_the_program_unpickles_or_evaluates() -> None:
    files = sorted((ROOT / "src").rglob("*.py"))
    assert len(files) > 20
    assert {
        str(file): dangers(file.read_text()) for file in files if dangers(file.read_text())
    } == {}


_OWN = "import pickle\nclass Own(pickle.Unpickler):\n    def {}(self, *names): ...\n"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import pickle", ["pickle"]),
        ("from pickle import loads", ["pickle"]),
        ("import pickle; pickle.loads(b)", ["pickle"]),
        ("import pickle\ntry: f()\nexcept pickle.UnpicklingError: g()", []),
        ("x = torch.load(f)", ["torch.load()"]),
        ("x = torch.load(f, weights_only=False)", ["torch.load()"]),
        ("x = torch.load(f, weights_only=True)", []),
        ("eval('1')", ["eval()"]),
        ("archive.extractall()", ["archive.extractall()"]),
        ("json.load(f)", []),
        (_OWN.format("find_class"), []),
        (_OWN.format("persistent_load"), ["pickle"]),
        (_OWN.format("find_class") + "pickle.Unpickler(f).load()", ["pickle"]),
    ],
)
def test_that_check_sees_what_it_looks_for(source: str, expected: list[str]) -> None:
    assert dangers(source) == expected


# ---------------------------------------------------------------- the verb


def call(*words: object) -> Result:
    return CliRunner().invoke(verb.command, [str(word) for word in words])


def test_the_verb_prints_path_size_and_hash(run: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.bundle"
    result = call(run, "--out", target, "--full", "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == {
        "schema": "trainrig.command/1",
        "bundle": str(target),
        "bytes": target.stat().st_size,
        "sha256": hashlib.sha256(target.read_bytes().partition(b"\n")[2]).hexdigest(),
        "run": run.name,
        "num_records": 1,
    }
    back = call(target, "--unpack", tmp_path / "to", "--json")
    assert json.loads(back.stdout) == {
        "schema": "trainrig.bundle-unpack/1",
        "run": str(tmp_path / "to" / run.name),
        "num_records": 1,
    }


def test_the_verb_takes_the_folder_that_holds_one_run_and_names_the_bundle_after_it(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = call(run.parent, "--full")
    assert result.exit_code == 0
    assert re.match(rf"bundle +{re.escape(run.name)}\.bundle\nbytes +\d+\nsha256 +", result.stdout)
    assert read_run(tmp_path / f"{run.name}.bundle").name == run.name


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (lambda run, packed: [packed], UsageError),
        (lambda run, packed: [run, "--unpack", run.parent / "to"], DataError),
        (lambda run, packed: [run.parent / "absent"], DataError),
        (lambda run, packed: [run, "--out", packed], StoreError),
        (lambda run, packed: [run, "--out", run.parent / "no" / "such" / "x"], StoreError),
    ],
)
def test_the_verb_refuses_with_a_line(
    words: Callable[[Path, Path], list[object]], kind: type[TrainrigError], run: Path, packed: Path
) -> None:
    result = call(*words(run, packed))
    assert type(result.exception) is kind
    assert result.stdout == ""


def test_the_verb_takes_either_out_or_unpack(run: Path) -> None:
    assert call(run, "--out", "a", "--unpack", "b").exit_code == 2
