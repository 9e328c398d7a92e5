"""Break the rules of the modules that judge, one mutation at a time, and see that a test fails.

    python tools/mutate.py                        every module of mutate.toml; minutes
    python tools/mutate.py analysis/judge.py      one module, or several
    python tools/mutate.py --changed [REF]        lines that differ from REF (default HEAD~1)
    python tools/mutate.py --seconds 110          as many as there is time for, drawn by --seed

Mutations: a comparison or its bound, a sign or operator, a condition that is dropped or turned
round, a number, a severity or outcome that is swapped, min for max and any for all.  Words in
messages are left alone.  Numbers of rule tables and constants of modules are held by the self-test
(thresholds.toml), and are not mutated here.

The tests of a module are collected once.  Each mutation is made in a forked child, by another code
object in the function that is there, and the child runs the tests that call the function, the
fastest first, until one fails.  A mutation that no test notices survives; one that changes nothing
is explained in mutate.toml, and any other makes the exit code 1.
"""

from __future__ import annotations

import argparse
import ast
import copy
import functools
import inspect
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
import tomllib
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
TABLE = Path(__file__).with_suffix(".toml")
PACKAGE = ROOT / "src" / "trainrig"
AT_ONCE = 2
FAULTS = "tests/unit/selftest/test_threshold_faults.py"
"""The self-test's faults at thresholds, as tests."""
LEAST_LIMIT_S = 10.0
"""Seconds that a mutation's tests may take at the least; else ten times what they took before."""


# ---- what is mutated

_ORDERS = {ast.Lt: (ast.LtE, ast.GtE), ast.LtE: (ast.Lt, ast.Gt)} | {
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
}
_TURNED = {ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In} | {
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
_OPERATORS = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult} | {
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
}
_NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}
_MEMBERS = {
    "FAIL": "PASS",
    "INCOMPLETE": "PASS",
    "PASS": "INCOMPLETE",
    "MEASURED": "PASS",
    "BETTER": "WORSE",
    "WORSE": "BETTER",
    "SAME": "CANNOT_TELL",
    "ABLE": "NOT_ABLE",
    "NOT_ABLE": "UNDECIDED",
    "TIMEOUT": "OK",
    "FAILED": "OK",
}
_WORDS = {"error": "warning", "warning": "error", "info": "warning"}
_IN_MESSAGES = ("evidence", "fix", "reason", "source", "risk", "undo")
"""Keyword arguments whose texts are messages."""


@dataclass(frozen=True, slots=True)
class Mutation:
    """One change of one function."""

    function: str
    """Qualified name."""
    line: int
    before: str
    after: str
    tree: ast.Module
    """The whole module with the change in it."""

    @property
    def text(self) -> str:
        """What is changed, without a line number: as mutate.toml names it."""
        return f"{self.function}: {self.before} -> {self.after}"


def mutations(source: str) -> Iterator[Mutation]:
    """Yield every mutation of a module's functions."""
    tree = ast.parse(source)
    for name, function in _functions(tree):
        for node in _nodes(function):
            for replacement in _replacements(node):
                yield _mutation(tree, name, node, replacement)


def _functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef):
            yield f"{prefix}{node.name}", node
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node, f"{prefix}{node.name}.")


def _nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes below one; but those of messages, annotations and defaults."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "defaults", "kw_defaults"):
            continue
        for child in value if isinstance(value, list) else [value]:
            is_message = isinstance(child, ast.JoinedStr | ast.Raise) or (
                isinstance(child, ast.keyword) and child.arg in _IN_MESSAGES
            )
            if isinstance(child, ast.AST) and not is_message:
                yield child
                yield from _nodes(child)


def _replacements(node: ast.AST) -> Iterator[ast.AST]:  # noqa: C901, PLR0912 - a table of cases
    match node:
        case ast.Compare(ops=[operator]):
            for other in _ORDERS.get(type(operator), ()):
                yield _with(node, ops=[other()])
            if (turned := _TURNED.get(type(operator))) is not None:
                yield _with(node, ops=[turned()])
        case ast.Compare(ops=[first, *rest]):
            for other in _ORDERS.get(type(first), ()):
                yield _with(node, ops=[other(), *rest])
        case ast.BoolOp(op=operator, values=values):
            yield _with(node, op=ast.Or() if isinstance(operator, ast.And) else ast.And())
            for place in range(len(values)):
                left = values[:place] + values[place + 1 :]
                yield left[0] if len(left) == 1 else _with(node, values=left)
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield operand
        case ast.BinOp(op=operator) if type(operator) in _OPERATORS and not _is_text(node):
            yield _with(node, op=_OPERATORS[type(operator)]())
        case ast.Constant(value=bool(value)):
            yield ast.Constant(value=not value)
        case ast.Constant(value=int(value)):
            yield ast.Constant(value=value + 1)
        case ast.Constant(value=float(value)):
            yield ast.Constant(value=value * 1.1 if value else 0.1)
        case ast.Constant(value=str(value)) if value in _WORDS:
            yield ast.Constant(value=_WORDS[value])
        case ast.Name(id=name) if name in _NAMES:
            yield ast.Name(id=_NAMES[name], ctx=ast.Load())
        case ast.Attribute(attr=name, value=ast.Name()) if name in _MEMBERS:
            yield _with(node, attr=_MEMBERS[name])
        case ast.If(test=test) | ast.IfExp(test=test) if not _is_logic(test):
            yield _with(node, test=ast.UnaryOp(op=ast.Not(), operand=test))
        case ast.comprehension(ifs=tests) if tests:
            for place in range(len(tests)):
                yield _with(node, ifs=tests[:place] + tests[place + 1 :])


def _is_logic(test: ast.expr) -> bool:
    """Whether a condition is mutated by its own parts."""
    return isinstance(test, ast.Compare | ast.BoolOp | ast.UnaryOp)


def _is_text(node: ast.BinOp) -> bool:
    sides = (node.left, node.right)
    return any(
        isinstance(side, ast.JoinedStr)
        or (isinstance(side, ast.Constant) and isinstance(side.value, str))
        for side in sides
    )


def _with(node: Any, **changes: Any) -> Any:
    changed = copy.copy(node)
    for name, value in changes.items():
        setattr(changed, name, value)
    return changed


class _Replace(ast.NodeTransformer):
    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self._old, self._new = old, new

    def visit(self, node: ast.AST) -> Any:
        return self._new if node is self._old else self._shallow(node)

    def _shallow(self, node: ast.AST) -> ast.AST:
        return self.generic_visit(copy.copy(node))

    def generic_visit(self, node: ast.AST) -> ast.AST:
        for name, value in ast.iter_fields(node):
            if isinstance(value, list):
                setattr(node, name, [self.visit(v) if isinstance(v, ast.AST) else v for v in value])
            elif isinstance(value, ast.AST):
                setattr(node, name, self.visit(value))
        return node


def _mutation(tree: ast.Module, name: str, node: ast.AST, replacement: ast.AST) -> Mutation:
    line = getattr(node, "lineno", 0) or getattr(getattr(node, "target", None), "lineno", 0)
    for attribute in ("lineno", "col_offset", "end_lineno", "end_col_offset"):
        if hasattr(node, attribute):
            setattr(replacement, attribute, getattr(node, attribute))
    changed = ast.fix_missing_locations(_Replace(node, replacement).visit(tree))
    if isinstance(node, ast.If):  # its body is not what is changed
        node, replacement = node.test, replacement.test  # type: ignore[attr-defined]
    before, after = (" ".join(ast.unparse(part).split()) for part in (node, replacement))
    return Mutation(function=name, line=line, before=before, after=after, tree=changed)


def apply(module: types.ModuleType, mutation: Mutation) -> None:
    """Give a function of a module that is loaded the code of a mutation."""
    code = compile(mutation.tree, str(module.__file__), "exec")
    for name in mutation.function.split("."):
        code = next(
            part
            for part in code.co_consts
            if isinstance(part, types.CodeType) and part.co_name == name
        )
    target: Any = module
    for name in mutation.function.split("."):
        target = inspect.getattr_static(target, name)
    function = _plain_function(target)
    function.__code__ = code
    while hasattr(target, "__wrapped__"):
        if hasattr(target, "cache_clear"):
            target.cache_clear()
        target = target.__wrapped__


def _plain_function(target: Any) -> types.FunctionType:
    if isinstance(target, property):
        target = target.fget
    if isinstance(target, classmethod | staticmethod):
        target = target.__func__
    if isinstance(target, functools.cached_property):
        target = target.func
    function = inspect.unwrap(target)
    assert isinstance(function, types.FunctionType), target
    return function


# ---- the tests


@dataclass(slots=True)
class Survey:
    """Which tests call which functions of a module, and how long each takes."""

    seconds: dict[str, float] = field(default_factory=dict)
    callers: dict[str, list[str]] = field(default_factory=dict)


class Runner:
    """A plugin of pytest that surveys the collected tests, then runs mutations against them."""

    def __init__(
        self, module: str, chosen: Sequence[Mutation], checks: Sequence[str], deadline: float
    ) -> None:
        self.module, self.chosen, self.deadline = module, chosen, deadline
        self._checks = tuple(f"[{check}" for check in checks)
        self.survivors: list[Mutation] = []
        self.num_run = 0
        self._has_failed = False

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leave out the self-test's faults that are another module's."""
        items[:] = [
            item
            for item in items
            if FAULTS not in item.nodeid or any(check in item.nodeid for check in self._checks)
        ]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._has_failed |= report.failed

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = {item.nodeid: item for item in session.items}
        survey = self._survey(list(items.values()))
        running: dict[int, tuple[Mutation, float]] = {}
        waiting = list(self.chosen)
        while waiting or running:
            while waiting and len(running) < AT_ONCE and time.monotonic() < self.deadline:
                mutation = waiting.pop(0)
                names = survey.callers.get(mutation.function, [])
                names = sorted(names, key=lambda name: survey.seconds[name])
                if not names:
                    self._done(mutation, is_killed=False)
                    continue
                limit = max(LEAST_LIMIT_S, 10.0 * sum(survey.seconds[name] for name in names))
                running[self._fork(mutation, [items[name] for name in names])] = (
                    mutation,
                    time.monotonic() + limit,
                )
            if not running:
                break
            self._reap(running)
        return True

    def _reap(self, running: dict[int, tuple[Mutation, float]]) -> None:
        for pid, (mutation, limit) in list(running.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if not ended and time.monotonic() > limit:
                os.kill(pid, signal.SIGKILL)
                ended, status = os.waitpid(pid, 0)
            if ended:
                del running[pid]
                self._done(mutation, is_killed=status != 0)
        time.sleep(0.002)

    def _done(self, mutation: Mutation, *, is_killed: bool) -> None:
        self.num_run += 1
        if not is_killed:
            self.survivors.append(mutation)

    def _fork(self, mutation: Mutation, items: Sequence[pytest.Item]) -> int:
        pid = os.fork()
        if pid:
            return pid
        try:
            _silence()
            apply(sys.modules[self.module], mutation)
            for item in items:
                self._run(item)
                if self._has_failed:
                    os._exit(1)
            os._exit(0)
        except BaseException:  # noqa: BLE001 - whatever breaks has noticed
            os._exit(1)

    def _run(self, item: pytest.Item) -> None:
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)

    def _survey(self, items: Sequence[pytest.Item]) -> Survey:
        """Run every test once, in a child, and note whom it calls."""
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            _silence()
            found = self._watch_calls(items)
            with os.fdopen(writer, "w") as file:
                json.dump([found.seconds, found.callers], file)
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as file:
            text = file.read()
        os.waitpid(pid, 0)
        if not text:
            raise pytest.UsageError(f"the tests of {self.module} fail without a mutation")
        seconds, callers = json.loads(text)
        return Survey(seconds=seconds, callers=callers)

    def _watch_calls(self, items: Sequence[pytest.Item]) -> Survey:
        found = Survey()
        path = str(sys.modules[self.module].__file__)
        called: set[str] = set()

        def watch(frame: types.FrameType, event: str, _: object) -> None:
            if event == "call" and frame.f_code.co_filename == path:
                called.add(frame.f_code.co_qualname)

        for item in items:
            called.clear()
            start = time.perf_counter()
            sys.setprofile(watch)
            self._run(item)
            sys.setprofile(None)
            if self._has_failed:
                os._exit(1)
            found.seconds[item.nodeid] = time.perf_counter() - start
            for name in {name.partition(".<locals>")[0] for name in called}:
                found.callers.setdefault(name, []).append(item.nodeid)
        return found


def _silence() -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)


# ---- modules


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a module's mutations."""

    file: str
    num: int
    survivors: tuple[Mutation, ...]
    explained: tuple[Mutation, ...]
    seconds: float


def run_module(
    file: str,
    tests: Sequence[str],
    checks: Sequence[str],
    keep: Callable[[Mutation], bool],
    limit_s: float,
    seed: int,
) -> Outcome:
    """Mutate a module, in this process, and run its tests."""
    start = time.monotonic()
    chosen = [m for m in mutations((PACKAGE / file).read_text(encoding="utf-8")) if keep(m)]
    random.Random(seed).shuffle(chosen)
    module = "trainrig." + file.removesuffix(".py").replace("/", ".")
    runner = Runner(module, chosen, checks, start + limit_s)
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    code = pytest.main(
        [*options, *(f"tests/unit/{name}" for name in tests), FAULTS], plugins=[runner]
    )
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        sys.exit(f"{file}: its tests cannot be run (pytest: {code})")
    known = _explained(file)
    return Outcome(
        file=file,
        num=runner.num_run,
        survivors=tuple(m for m in runner.survivors if m.text not in known),
        explained=tuple(m for m in runner.survivors if m.text in known),
        seconds=time.monotonic() - start,
    )


def _table() -> dict[str, Any]:
    return tomllib.loads(TABLE.read_text(encoding="utf-8"))


def _explained(file: str) -> dict[str, str]:
    """Return mutations that change nothing, and why."""
    rows = _table().get("survivor", [])
    return {row["mutation"]: row["why"] for row in rows if row["file"] == file}


def changed_lines(reference: str) -> dict[str, set[int]]:
    """Return the lines of each module that differ from a commit."""
    words = ["git", "diff", "-U0", reference, "--", "src/trainrig"]
    text = subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    lines: dict[str, set[int]] = {}
    file = ""
    for line in text.splitlines():
        if line.startswith("+++ b/src/trainrig/"):
            file = line.removeprefix("+++ b/src/trainrig/")
        elif match := re.match(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@", line):
            first, num = int(match[1]), int(match[2] or 1)
            lines.setdefault(file, set()).update(range(first, first + num))
    return lines


def main() -> int:
    """Print a line for each module, and the mutations that no test noticed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("files", nargs="*", help="modules below src/trainrig; all of mutate.toml")
    parser.add_argument("--changed", nargs="?", const="HEAD~1", metavar="REF")
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    modules: dict[str, dict[str, list[str]]] = _table()["modules"]
    if unknown := [file for file in asked.files if file not in modules]:
        parser.error(f"{unknown[0]} is not in {TABLE.name}")
    lines = changed_lines(asked.changed) if asked.changed else None
    files = [f for f in asked.files or modules if lines is None or f in lines]
    os.chdir(ROOT)
    sys.path[:0] = [str(ROOT / "src")]
    deadline = time.monotonic() + asked.seconds
    num = killed = unexplained = 0
    for place, file in enumerate(files):
        left = max(1.0, deadline - time.monotonic()) / (len(files) - place)
        numbers = lines[file] if lines is not None else None
        outcome = _in_child(file, **modules[file], numbers=numbers, limit_s=left, seed=asked.seed)
        survived = len(outcome["survivors"])
        num += outcome["num"]
        killed += outcome["num"] - survived - outcome["explained"]
        unexplained += survived
        share = 1.0 - survived / outcome["num"] if outcome["num"] else 1.0
        print(
            f"{file}: {outcome['num']} mutations, {survived} survived, "
            f"{outcome['explained']} more are explained: {share:.1%}, {outcome['seconds']:.0f} s",
            flush=True,
        )
        for text in outcome["survivors"]:
            print(f"    {text}", flush=True)
    share = 1.0 - unexplained / num if num else 1.0
    print(f"{num} mutations, {unexplained} survived unexplained: {share:.1%} killed or explained")
    return 0 if share >= 0.95 else 1


def _in_child(
    file: str,
    tests: Sequence[str],
    checks: Sequence[str],
    numbers: set[int] | None,
    limit_s: float,
    seed: int,
) -> dict[str, Any]:
    """Mutate a module in a child of its own: the next one begins with a clean interpreter."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what pytest prints
        outcome = run_module(
            file, tests, checks, lambda m: numbers is None or m.line in numbers, limit_s, seed
        )
        with os.fdopen(writer, "w") as stream:
            survivors = [f"{m.line}: {m.text}" for m in outcome.survivors]
            json.dump(
                {
                    "num": outcome.num,
                    "survivors": survivors,
                    "explained": len(outcome.explained),
                    "seconds": outcome.seconds,
                },
                stream,
            )
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as stream:
        text = stream.read()
    os.waitpid(pid, 0)
    if not text:
        sys.exit(f"{file}: its tests fail without a mutation, or could not be run")
    found: dict[str, Any] = json.loads(text)
    return found


if __name__ == "__main__":
    sys.exit(main())
