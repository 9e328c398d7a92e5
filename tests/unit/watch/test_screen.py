"""The screen of `top`, driven by textual's pilot without a terminal, and the same in plain text."""

from __future__ import annotations

import asyncio
import threading

import pytest
from textual.widgets import DataTable, Sparkline, Static

from live_views import BURN, RUN, Looker, view
from trainrig.watch.lines import plain_lines
from trainrig.watch.screen import Top


async def settled(pilot, app: Top, looks: int = 1) -> None:
    """Until so many looks are shown."""
    for _ in range(200):
        await pilot.pause(0.01)
        if app._watch.looks >= looks and app.query_one("#devices", DataTable).row_count:
            await app.workers.wait_for_complete()
            await pilot.pause()
            return
    raise AssertionError("no look was shown")


def texts(app: Top) -> str:
    """What the screen shows, without its frame."""
    return "\n".join(
        "".join(segment.text for segment in strip)
        for strip in app.screen._compositor.render_strips()
    )


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
def test_all_that_matters_is_on_one_screen(size: tuple[int, int]) -> None:
    async def drive() -> tuple[str, Top]:
        app = Top(Looker(), period_s=60.0)
        async with app.run_test(size=size) as pilot:
            await settled(pilot, app)
            assert app.query_one("#devices", DataTable).row_count == 4
            assert len(app.query_one("#rate", Sparkline).data or ()) == 60
            assert "tokens/s 11,700 to 12,300" in str(
                app.query_one("#rate-caption", Static).render()
            )
            return texts(app), app

    shown, _ = asyncio.run(drive())
    for words in (
        "AMD Ryzen 9 7950X",
        "98 %",
        "83 °C",
        "hw_thermal_slowdown",
        "memory 24",
        RUN,
        "gpt2-124m: step 120, loss 4.1",
        "matmul bf16 161 TFLOPS, 2 errors",
        "4242",
        "python -m trainrig",
        "no answer",
    ):
        assert words in shown, (words, shown)


def test_it_looks_again_pauses_and_ends() -> None:
    async def drive() -> None:
        app = Top(Looker(), period_s=0.05)
        async with app.run_test(size=(80, 24)) as pilot:
            await settled(pilot, app, looks=3)
            await pilot.press("p")
            await app.workers.wait_for_complete()
            looks = app._watch.looks
            await pilot.pause(0.2)
            assert app._watch.looks == looks and app.sub_title == "paused"
            await pilot.press("p")
            await settled(pilot, app, looks=looks + 1)
            await pilot.press("q")
        assert app.return_code == 0

    asyncio.run(drive())


def test_an_interrupt_from_the_keyboard_ends_it() -> None:
    async def drive() -> None:
        app = Top(Looker(), period_s=60.0)
        async with app.run_test(size=(80, 24)) as pilot:
            await settled(pilot, app)
            assert app.return_code is None
            await pilot.press("ctrl+c")
            assert app.return_code == 0

    asyncio.run(drive())


def test_a_look_that_takes_longer_than_the_period_is_shown_and_is_the_only_one() -> None:
    begun, go_on = threading.Event(), threading.Event()

    class Slow(Looker):
        def look(self):
            found = super().look()
            begun.set()
            assert go_on.wait(30.0)
            return found

    async def drive() -> int:
        app = Top(Slow(), period_s=60.0)
        async with app.run_test(size=(80, 24)) as pilot:
            while not begun.is_set():
                await pilot.pause(0.01)
            app.look()
            app.look()
            go_on.set()
            await settled(pilot, app)
            return app._watch.looks

    assert asyncio.run(drive()) == 1


def test_a_machine_without_work_says_so() -> None:
    class Idle(Looker):
        def look(self):
            import dataclasses

            self.looks += 1
            return dataclasses.replace(view(), runs=(), trainings=(), burns=(), jobs={})

    async def drive() -> str:
        app = Top(Idle(), period_s=60.0)
        async with app.run_test(size=(80, 24)) as pilot:
            await settled(pilot, app)
            assert not app.query_one("#charts").display
            return texts(app)

    assert "no run is being written on this machine" in asyncio.run(drive())


def test_plain_text_has_the_same() -> None:
    text = "\n".join(plain_lines(view()))
    assert f"{RUN} (train, process 4241)" in text and f"{BURN} (burn, process 4300)" in text
    assert "  RTX 4090 #1: matmul bf16 161 TFLOPS, 2 errors" in text
    assert "job 20261122T203000Z-train-1a2b3c: trainrig train --model gpt2 --detach" in text
    assert text.splitlines()[0].split() == ["device", "use", "temp", "power", "clock", "held"] + [
        "down",
        "by",
    ]
