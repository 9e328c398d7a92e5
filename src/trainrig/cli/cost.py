"""`trainrig cost`: buy, rent or cloud, for a goal or for some years."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainrig.cli.build import CURRENCY, PRICES, read_list
from trainrig.cli.predict_options import WHAT, WHERE, one_machine
from trainrig.cli.verb import PAGES, PATH, RUN, TOKENS, Pages, json_option, options, rows, verb
from trainrig.units import counted

if TYPE_CHECKING:
    from trainrig.procure.load_rules import Power
    from trainrig.procure.ownership import CostAnswer, Terms
    from trainrig.procure.training_rate import TrainingRate

_HIDDEN: dict[str, Any] = {"type": float, "hidden": True}
_WAYS = rows(
    "Prices",
    ("--buy", float, "not bought", "Price of one machine: a server's quote."),
    ("--parts", PATH, "none", "A parts list: its total is the price, its watts are counted."),
    ("--rent-per-gpu-hour", float, "not rented", "On demand, of one GPU, as clouds quote it."),
    ("--rent-per-machine-hour", float, "not rented", "On demand, of one machine."),
    ("--rent-per-month", float, "not rented", "One machine's month, whether it runs or not."),
    ("--reserved-per-gpu-hour", float, "not rented", "Committed: every hour of the years."),
    ("--reserved-per-machine-hour", float, "not rented", "Committed, of one machine."),
    ("--spot-per-gpu-hour", float, "not rented", "Spot, which is interrupted; of one GPU."),
    ("--spot-per-machine-hour", float, "not rented", "Spot, of one machine."),
    ("--machine", "NAME", "none", "Take its prices, and a kWh's, from the price list."),
    ("--rent-per-hour", _HIDDEN, "", "One hour's price, where a machine has one GPU."),
    ("--reserved-per-hour", _HIDDEN, "", "One hour's price, where a machine has one GPU."),
    ("--spot-per-hour", _HIDDEN, "", "One hour's price, where a machine has one GPU."),
)
_USE = rows(
    "Use of it",
    ("--years", float, "3", "Years that it is kept."),
    (
        *("--utilisation", float, "the training's hours, else 1"),
        "Share of the hours in which it works, 0 to 1.",
    ),
    ("--machines", int, "as many as the GPUs need", "How many of them."),
    ("--tokens", TOKENS, "no training", "Tokens of the training that is wanted."),
    ("--days", float, "no limit", "Days for them: without --gpus, how many GPUs that takes."),
    ("--global-batch", int, "about a million tokens", "Samples of a step."),
)
_OWNING = rows(
    "Owning",
    ("--resale", float, "0, not counted", "Share of the price that it brings after the years."),
    ("--interest", float, "0, not counted", "A year: 0.05."),
    ("--watts", float, "of --parts, measured, or the GPUs'", "Watts of one machine at the wall."),
    (
        *("--kwh-price", float, "presumed for the currency, and shown"),
        "Price of a kWh; 0 leaves electricity out.",
    ),
    ("--pue", float, "1", "Power of the site over the machine's: cooling and losses."),
    ("--hosting-per-month", float, "0, not counted", "Room, rack or colocation of one machine."),
    ("--staff-hours-per-month", float, "0, not counted", "Hours of people for all machines."),
    ("--staff-rate", float, "0, not counted", "Price of their hour."),
)
_FAILURES = rows(
    "Failures",
    ("--mtbf-hours", float, "none are counted", "Mean time between failures of the whole."),
    ("--checkpoint-seconds", float, "60 with --mtbf-hours", "To save a checkpoint."),
    ("--restart-seconds", float, "300", "From a failure to the next step."),
    ("--interruptions-per-day", float, "none are counted", "How often spot is taken away."),
)
_MEASURED = rows(
    "Machine",
    (
        *("--measured", RUN, ""),
        "Take tokens/s and watts that this run measured, and show what they change.",
    ),
)


_COMMON = (
    *("--buy", "--rent-per-gpu-hour", "--rent-per-machine-hour", "--years", "--utilisation"),
    *("--tokens", "--days", "--global-batch", "--watts", "--kwh-price", "--model", "--method"),
    *("--on", "--gpus", "--measured", "--currency"),
)
"""Options that `--help` lists; `--help-all` has the rest."""


@verb(common=_COMMON)
@options(_WAYS, _USE, _OWNING, _FAILURES, WHAT, WHERE[:1], WHERE[4:], _MEASURED)
@PRICES
@CURRENCY
@options(PAGES)
@json_option()
def command(
    prices: Path | None,
    currency: str | None,
    pages: Pages,
    as_json: bool,
    **keys: Any,
) -> int:
    """Compare buying with renting: totals, break-even, a million tokens, what matters most.

    \b
    trainrig cost --buy 200000 --rent-per-machine-hour 32 --years 3 --currency USD
    trainrig cost --model llama-7B --tokens 140e9 --days 60 --on "H100 SXM5 80GB" \\
        --buy 280000 --rent-per-gpu-hour 3 --watts 10200 --kwh-price 0.12 --pue 1.3
    trainrig cost --parts machine.toml --rent-per-machine-hour 2 --measured runs/RUN

    Prices are yours: none is invented but a kWh's, which is shown, and what has none is named.
    Exit code 1 where the training does not end within --days.
    """
    from trainrig.cli.output import publish
    from trainrig.errors import EXIT_FINDING, EXIT_OK
    from trainrig.procure.cost_json import changes, cost_dict
    from trainrig.report.cost_report import cost_document

    measured: Path | None = keys.pop("measured")
    predicted, answer = _cost_answers(keys, prices, currency, measured)
    changed = changes(predicted, answer) if predicted is not None else []

    def content() -> dict[str, Any]:
        return cost_dict(answer) | ({"changes": changed} if changed else {})

    publish(as_json, content, lambda: cost_document(answer, changed), pages)
    days = answer.days_of_training()
    late = days is not None and answer.days is not None and days[0] > answer.days
    return EXIT_FINDING if late else EXIT_OK


def _cost_answers(
    keys: dict[str, Any], prices: Path | None, currency: str | None, measured: Path | None
) -> tuple[CostAnswer | None, CostAnswer]:
    """Return the answer as predicted, where it is measured as well; and the one that holds."""
    from trainrig.catalog import peak
    from trainrig.catalog.servers import find_server
    from trainrig.procure.ownership import ask_costs
    from trainrig.procure.quoted_prices import take_quoted
    from trainrig.procure.training_rate import predicted_rate

    values = {name: value for name, value in keys.items() if value is not None}
    _check_needs(values, is_measured=measured is not None)
    tokens, days = values.pop("tokens", None), values.pop("days", None)
    numbers, money, power, cards = _with_prices(values, prices, currency)
    hourly = {name: values.pop(name) for name in tuple(values) if name.endswith("_hour")}
    failures = _failures(values)
    values = one_machine(chip=(), cluster=(), **values)
    chip = find_server(values["on"]).chip if "on" in values else None
    has_question = "model" in values and (measured is None or "on" in values)
    rate = predicted_rate(values, tokens, days) if has_question else None
    claim = peak(chip, "bf16") or peak(chip, "fp16") if chip is not None else None
    per_machine = cards or _gpus_per_machine(rate, values)
    if rate is None and values.get("gpus") and per_machine:
        numbers.setdefault("machines", math.ceil(values["gpus"] / per_machine))

    def answer(training_rate: TrainingRate | None) -> CostAnswer:
        gpus = (
            per_machine
            if training_rate is None or training_rate.is_measured
            else training_rate.gpus / training_rate.nodes
        )
        if gpus is None and chip is not None:
            gpus = 1.0
        return ask_costs(
            _terms(numbers, failures, training_rate, power),
            money,
            quotes=take_quoted(dict(hourly), gpus),
            chip=chip,
            gpus_per_machine=gpus,
            rate=training_rate,
            tokens=tokens,
            days=days,
            peak=claim.rate * per_machine if claim and per_machine else None,
            memory=chip.memory.size * per_machine
            if chip and chip.memory.size and per_machine
            else None,
            is_one_training="utilisation" not in numbers,
        )

    if measured is None:
        _check_days(rate, tokens, days, values)
        return None, answer(rate)
    measured_rate_of_run = _measured_rate(measured, values.get("model", ""), rate)
    nodes = numbers.get("machines") or math.ceil(
        measured_rate_of_run.gpus / (per_machine or measured_rate_of_run.gpus)
    )
    per_machine = per_machine or measured_rate_of_run.gpus / nodes
    measured_rate_of_run = replace(measured_rate_of_run, nodes=nodes)
    return (None if rate is None else answer(rate)), answer(measured_rate_of_run)


_OF_TRAINING = (
    *("tokens", "global_batch", "seq_len", "precision", "kernels", "optimizer", "recompute"),
    *("offload", "method", "lora_rank", "link", "host_memory", "fabric_gbps", "p2p"),
)
_NEEDS: dict[str, tuple[str, ...]] = {
    "days": ("tokens",),
    "staff_rate": ("staff_hours_per_month",),
    "staff_hours_per_month": ("staff_rate",),
    "interruptions_per_day": (
        *("spot_per_gpu_hour", "spot_per_machine_hour", "spot_per_hour", "machine"),
    ),
    **dict.fromkeys(("resale", "interest", "hosting_per_month"), ("buy", "parts", "machine")),
}
"""Options that say nothing without one of others."""


def _check_needs(values: dict[str, Any], *, is_measured: bool) -> None:
    """Raise UsageError for an option that would be swallowed, since the other one lacks."""
    from trainrig.errors import UsageError

    needs = dict(_NEEDS)
    if not is_measured:
        needs |= dict.fromkeys(_OF_TRAINING, ("model",))
    for name, others in needs.items():
        if name in values and not values.keys() & set(others):
            flag, other = (f"--{key.replace('_', '-')}" for key in (name, others[0]))
            raise UsageError(f"{flag} needs {other}", f"add {other}, or leave {flag} out")


def _check_days(
    rate: TrainingRate | None, tokens: float | None, days: float | None, values: dict[str, Any]
) -> None:
    """Raise UsageError where the GPUs that are given cannot end within the days that are given."""
    from trainrig.errors import UsageError

    gpus = values.get("gpus")
    if rate is None or tokens is None or days is None or gpus is None:
        return
    middle, soonest, _ = rate.days(tokens)
    if soonest > days:
        raise UsageError(
            f"--gpus {gpus} and --days {days:g} contradict each other: "
            f"{counted(rate.gpus, 'GPU')} take {middle:,.3g} days",
            "leave --gpus out to find how many GPUs end in time, or leave --days out",
        )


def _with_prices(
    values: dict[str, Any], prices: Path | None, currency: str | None
) -> tuple[dict[str, Any], str, Power | None, int]:
    """Return the terms that a list of parts, a price list or options state, out of ``values``.

    With them their currency, the power of a list's parts where no watts are given, and how many
    cards a list has.
    """
    from trainrig.errors import UsageError
    from trainrig.procure.load_rules import power_of
    from trainrig.procure.ownership import listed_terms
    from trainrig.procure.price_list import currency_of, read_prices

    parts, machine = values.pop("parts", None), values.pop("machine", None)
    terms_given = {name: values.pop(name) for name in tuple(values) if name in _TERMS}
    money = currency_of(currency) if currency else ""
    numbers: dict[str, Any] = {}
    power, cards = None, 0
    if machine is not None and not money:
        raise UsageError(f"prices of {machine} in which currency?", "as --currency USD")
    if machine is not None:
        numbers |= listed_terms(read_prices(prices), machine, money)
    if parts is not None:
        build = read_list(parts, prices, currency)
        money = build.currency
        if build.total is not None:
            numbers["buy"] = build.total
        elif "buy" not in {*terms_given, *numbers}:
            raise UsageError(
                f"{build.name} has no total: no price of {', '.join(build.unpriced)}",
                "price = … in the list, or a price list; --buy has one for the whole",
            )
        power = power_of(build) if "watts" not in terms_given else None
        cards = len(build.cards)
    return numbers | terms_given, money, power, cards


_TERMS = (
    *("buy", "rent_per_month", "years", "utilisation", "machines"),
    *("resale", "interest", "watts", "kwh_price", "pue"),
    *("hosting_per_month", "staff_hours_per_month", "staff_rate", "interruptions_per_day"),
)


def _measured_rate(run: Path, model: str, predicted: TrainingRate | None) -> TrainingRate:
    """Return the rate that a run measured, with predicted watts where it read none."""
    from trainrig.procure.training_rate import measured_rate
    from trainrig.store import read_run

    run_rate = measured_rate(read_run(run).records, run.name, model)
    if run_rate.gpu_watts is not None or predicted is None or predicted.gpu_watts is None:
        return run_rate
    return replace(run_rate, limit_watts=predicted.gpu_watts / predicted.gpus * run_rate.gpus)


def _gpus_per_machine(rate: TrainingRate | None, values: dict[str, Any]) -> float | None:
    """GPUs of one machine; None where nothing tells: nothing is divided by a guess."""
    from trainrig.catalog.servers import find_server
    from trainrig.prediction.scenario import one_node

    if rate is not None:
        return rate.gpus / rate.nodes
    if "gpus_per_node" in values:
        return float(values["gpus_per_node"])
    server = find_server(values["on"]) if "on" in values else None
    if server is not None and server.gpus:
        return server.gpus
    gpus: int | None = values.get("gpus")
    if gpus is None:
        return None
    return min(gpus, one_node({"on": values["on"]})) if "on" in values else gpus


def _terms(
    numbers: dict[str, Any], failures: Any, rate: TrainingRate | None, power: Power | None
) -> Terms:
    """Terms, with machines and watts from what trains on them where they are not given.

    Of a parts list (``power``) the GPUs' watts are those that were measured, where they were.
    """
    from trainrig.errors import UsageError
    from trainrig.procure.ownership import Terms

    terms = dict(numbers)
    if rate is not None and terms.setdefault("machines", rate.nodes) != rate.nodes:
        raise UsageError(
            f"{counted(rate.gpus, 'GPU')} that train are {counted(rate.nodes, 'machine')}, "
            f"not {terms['machines']}",
            "--gpus of all machines and --gpus-per-node, or leave --machines out",
        )
    watts = (rate.gpu_watts or rate.limit_watts) if rate is not None else None
    if power is not None:
        measured_watts = rate.gpu_watts if rate is not None and rate.is_measured else None
        terms["watts"] = (
            replace(power, gpus=measured_watts / terms["machines"]) if measured_watts else power
        ).wall
    elif watts is not None and "watts" not in terms:
        terms |= {"watts": watts / terms["machines"], "gpus_alone": True}
    return Terms(**terms, failures=failures)


def _failures(values: dict[str, Any]) -> Any:
    from trainrig.errors import UsageError
    from trainrig.procure.goodput import Failures

    mtbf = values.pop("mtbf_hours", None)
    saving = values.pop("checkpoint_seconds", None)
    restart = values.pop("restart_seconds", None)
    if mtbf is None:
        if saving is not None or restart is not None:
            raise UsageError("how often does it fail?", "--mtbf-hours: hours between failures")
        return None
    failures = Failures(
        mtbf_s=mtbf * 3600.0,
        checkpoint_s=60.0 if saving is None else saving,
        restart_s=300.0 if restart is None else restart,
    )
    failures.check()
    return failures
