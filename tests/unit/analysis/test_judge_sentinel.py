"""A machine that changed under the run: a tenth beyond the limit and inside, at random places."""

from __future__ import annotations

import random

import pytest

from trainrig.analysis.judge_sentinel import changes_of
from trainrig.analysis.watched_rules import watch_rules

START = 1.8e9


def looks(rng: random.Random, factor: float, index: int | None, num: int = 8) -> tuple[int, list]:
    """Rows of one device that changes by a factor at a random look, among those of healthy ones."""
    place = rng.randrange(1, num - 1)
    rows = [
        {
            "t": START + 30.0 * look,
            "m": 100.0 + 30.0 * look,
            "device": "H100 SXM5 80GB",
            "index": number,
            "time_s": 1e-3
            * rng.uniform(0.999, 1.001)
            * (factor if number == index and look >= place else 1.0),
            "disturbed": None,
        }
        for look in range(num)
        for number in (0, 1, None)
    ]
    return place, rows


@pytest.mark.parametrize("index", [1, None])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("faster", [False, True])
def test_a_device_that_changes_for_good_is_named_with_the_time(
    index: int | None, seed: int, faster: bool
) -> None:
    share = watch_rules().sentinel["host" if index is None else "gpu"]
    beyond, inside = 1.0 + share * 1.1, 1.0 + share * 0.9
    place, rows = looks(random.Random(seed), 1.0 / beyond if faster else beyond, index)
    (found,) = changes_of(rows)
    assert found.id == "machine-changed"
    minute, second = divmod(30 * place, 60)
    assert f"08:{minute:02d}:{second:02d} UTC" in found.evidence
    assert ("faster" if faster else "slower") in found.evidence
    _, rows = looks(random.Random(seed), 1.0 / inside if faster else inside, index)
    assert list(changes_of(rows)) == []


def test_what_passes_or_was_seen_changes_nothing() -> None:
    _, rows = looks(random.Random(1), 1.0, 0)
    once = [dict(row, time_s=2e-3) if row["m"] == 190.0 else row for row in rows]
    assert list(changes_of(once)) == []
    seen = [dict(row, time_s=2e-3, disturbed="others") if row["m"] > 190.0 else row for row in rows]
    assert list(changes_of(seen)) == []
    assert list(changes_of(rows[:4])) == []


def row(time_s: object, m: float, **more: object) -> dict[str, object]:
    return {"t": START + m, "m": m, "device": "H100", "index": 0, "time_s": time_s, **more}


@pytest.mark.parametrize(
    ("times", "changes"),
    [
        ((1.0, 1.2, 1.2), True),
        ((1.2, 1.0, 1.0), True),
        ((1.0, 1.2), False),  # two looks show no change for good
        ((1.0, 1.1, 1.1), False),  # just the limit
        ((1.1, 1.0, 1.0), False),
        ((1.2, 1.0, 1.2), False),
        ((1.0, 1.05, 1.2), True),
        ((1.0, 1.15, 1.2), True),
        ((1.0, 0.0, 1.2), False),  # a time of nothing says that nothing was measured
        ((1.0, None, 1.2), False),
        ((0.05, 0.06, 0.06), True),
    ],
)
def test_looks_decide_by_all_before_and_all_after(
    times: tuple[float | None, ...], changes: bool
) -> None:
    rows = [row(time, 100.0 * look) for look, time in enumerate(times)]
    assert bool(list(changes_of(rows))) is changes


def test_by_how_much_it_changed_is_said() -> None:
    rows = [row(time, 100.0 * look) for look, time in enumerate((2.0, 3.0, 3.0))]
    (found,) = changes_of(rows)
    assert "went 50 % slower" in found.evidence
    (found,) = changes_of([dict(each, t=None) for each in rows])
    assert "a moment that is not known" in found.evidence


def test_rows_without_a_clock_are_of_one_start() -> None:
    rows = [row(time, 100.0 * look) for look, time in enumerate((1.0, 1.5, 1.5))]
    for place in (0, 1, 2):
        unclocked = [dict(each, m=None) if n == place else each for n, each in enumerate(rows)]
        assert list(changes_of(unclocked))
    three = [dict(each, start=start) for start in (1.0, 2.0, 3.0) for each in rows[:1]]
    three[1] |= {"time_s": 2.0}
    assert list(changes_of([*three, *three])) == []


def test_each_start_of_a_resumed_run_is_judged_for_itself() -> None:
    """After a reboot the monotonic clock begins anew: a sentinel in another state is no change."""
    _, rows = looks(random.Random(1), 1.0, 0)
    resumed = [
        dict(row, t=row["t"] + 900.0, m=row["m"] - 90.0, time_s=1.5 * row["time_s"]) for row in rows
    ]
    assert list(changes_of([*rows, *resumed])) == []
    same_boot = [
        dict(row, start=start, m=row["m"] + start)
        for start, part in ((1.0, rows), (5000.0, resumed))
        for row in part
    ]
    assert list(changes_of(same_boot)) == []
    _, changed = looks(random.Random(1), 1.5, 0)
    after = [dict(row, t=row["t"] + 900.0, m=row["m"] - 90.0) for row in changed]
    (found,) = changes_of([*rows, *after])
    assert "slower" in found.evidence and found.evidence.split("before ")[1] >= "08:15"
