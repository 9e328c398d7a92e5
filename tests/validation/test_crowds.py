"""A quick part of `validation.crowds`."""

from __future__ import annotations

import random

import pytest

from trainrig.record import Outcome
from validation import crowds


@pytest.mark.parametrize("line", crowds.LINES, ids=lambda line: line.name)
def test_machines_are_judged_as_they_are(line: crowds.CrowdLine) -> None:
    num = 40 if line.count == 1 else 6
    outcomes = [crowds.outcome_of(seed, line.count, faulty=line.faulty) for seed in range(num)]
    verdicts = {verdict for verdict, _ in outcomes}
    assert verdicts <= ({"FAIL", "INCOMPLETE", "MEASURED"} if line.faulty else {"PASS"}), outcomes


@pytest.mark.parametrize("name", sorted(crowds.FAULTS))
@pytest.mark.parametrize("count", [1, 2])
def test_each_fault_withholds_a_pass(name: str, count: int) -> None:
    rng = random.Random(name)
    fault = crowds.FAULTS[name](rng)
    machine = crowds.SimulatedMachine(rng, count, fault, sick=count - 1, lost=0.12)
    assert machine.verdict() is not Outcome.PASS


def test_a_line_is_wrong_where_a_sick_machine_passes_or_a_healthy_one_fails() -> None:
    healthy, sick = crowds.LINES[:2]
    outcomes = crowds.Counter({Outcome.PASS: 99, Outcome.INCOMPLETE: 1})
    assert healthy.is_right(outcomes)
    assert not sick.is_right(outcomes)
    assert not healthy.is_right(crowds.Counter({Outcome.PASS: 99, Outcome.FAIL: 1}))
    assert not healthy.is_right(crowds.Counter({Outcome.PASS: 97, Outcome.INCOMPLETE: 3}))
