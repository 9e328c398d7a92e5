"""The JSON of what owning and renting cost: what ``trainrig cost --json`` prints."""

from __future__ import annotations

import dataclasses
from typing import Any

from trainrig.procure.ownership import SPREAD, CostAnswer, Way
from trainrig.procure.quoted_prices import QuotedPrice
from trainrig.procure.training_rate import TrainingRate


def cost_dict(found: CostAnswer) -> dict[str, Any]:
    """What ``cost --json`` prints; others script against it."""
    rented = next((way for way in found.ways if way.name != "buy"), None)
    result: dict[str, Any] = {
        "currency": found.currency or None,
        "break_even_days": rented.break_even_days if rented else None,
        "break_even_months": None
        if rented is None or rented.break_even_days is None
        else rented.break_even_days / (365.0 / 12.0),
        "break_even_days_used": rented.break_even_days_used if rented else None,
        "break_even_utilisation": rented.break_even_utilisation if rented else None,
        "break_even_hours": rented.break_even_hours(found.terms) if rented else None,
        "quoted": [_quote_dict(one, found.terms.machines) for one in found.quotes],
        "presumed": list(found.presumed),
        "cheapest": found.cheapest.name,
        "ways": {way.name: _way_dict(found, way) for way in found.ways},
        "sensitivity": [dataclasses.asdict(one) | {"spread": SPREAD} for one in found.swings],
        "not_counted": list(found.not_counted),
        "terms": dataclasses.asdict(found.terms),
    }
    if numbers := found.checkpoints():
        result["checkpoints"] = numbers
    if found.peak and found.terms.buy is not None:
        result["price_per_tflops"] = found.terms.buy / (found.peak / 1e12)
    if found.memory and found.terms.buy is not None:
        result["price_per_gib"] = found.terms.buy / (found.memory / 2.0**30)
    if found.rate is not None:
        days = found.days_of_training()
        result["training"] = {
            "tokens": found.tokens,
            "tokens_per_s": found.rate.tokens_per_s,
            "interval": {"tokens_per_s": [found.rate.low, found.rate.high]},
            "source": found.rate.source,
            "gpus": found.rate.gpus,
            "machines": found.terms.machines,
            "gpu_watts": found.rate.gpu_watts,
            "days": days[0] if days else None,
            "days_interval": list(days[1:]) if days else None,
            "days_wanted": found.days,
            "in_time": None if days is None or found.days is None else days[0] <= found.days,
            "kwh": found.kwh_of_training(),
            **_program(found.rate),
        }
    return result


def _program(rate: TrainingRate) -> dict[str, Any]:
    from trainrig.prediction.as_json import program_dict  # where a training is predicted

    return {} if rate.prediction is None else program_dict(rate.prediction.question)


def _quote_dict(quote: QuotedPrice, machines: int) -> dict[str, Any]:
    return {
        "way": quote.way,
        "price": quote.price,
        "per": f"{quote.per}-hour",
        "count": quote.count(machines),
        "per_hour": quote.per_machine * machines,
    }


def _way_dict(found: CostAnswer, way: Way) -> dict[str, Any]:
    each, whole = found.per_million_tokens(way), found.of_training(way)
    return {
        "total": way.total,
        "parts": dict(way.parts),
        "per_useful_hour": way.per_hour,
        "break_even_days": way.break_even_days,
        "break_even_days_used": way.break_even_days_used,
        "break_even_utilisation": way.break_even_utilisation,
        "break_even_hours": way.break_even_hours(found.terms),
        "goodput": found.yield_of(way),
        "per_million_tokens": each[0] if each else None,
        "per_million_tokens_interval": list(each[1:]) if each else None,
        "training": whole[0] if whole else None,
        "training_interval": list(whole[1:]) if whole else None,
    }


def changes(before: CostAnswer, after: CostAnswer) -> list[dict[str, Any]]:
    """What measured rates and watts change of what was predicted, number by number."""

    cheapest = after.cheapest.name

    def rows(found: CostAnswer) -> dict[str, float | None]:
        way, rate = found.way(cheapest) or found.cheapest, found.rate
        days = found.days_of_training()
        each = found.per_million_tokens(way)
        return {
            "gpus": rate.gpus if rate else None,
            "machines": found.terms.machines,
            "tokens_per_s": rate.tokens_per_s if rate else None,
            "gpu_watts": rate.gpu_watts if rate else None,
            "joules_per_token": rate.gpu_watts / rate.tokens_per_s
            if rate and rate.gpu_watts
            else None,
            "days": days[0] if days else None,
            "kwh": found.kwh_of_training(),
            "per_useful_hour": way.per_hour,
            "per_million_tokens": each[0] if each else None,
            "break_even_days": cost_dict(found)["break_even_days"],
        }

    old, new = rows(before), rows(after)
    return [
        {
            "what": name,
            "predicted": old[name],
            "measured": new[name],
            "change": (now / then - 1.0)
            if (then := old[name]) and (now := new[name]) is not None
            else None,
        }
        for name in old
        if new[name] is not None and not (name in ("gpus", "machines") and old[name] == new[name])
    ]
