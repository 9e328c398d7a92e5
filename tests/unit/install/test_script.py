"""The script as text: sound shell, no host of a package index, nothing injected, every system."""

from __future__ import annotations

import json
import re
import subprocess
from itertools import cycle, islice
from pathlib import Path
from typing import get_args

import pytest

from trainrig.catalog.cuda import cuda_table
from trainrig.errors import UsageError
from trainrig.install.choose import Route, choose, target_named
from trainrig.install.script import Mirrors, dockerfile, script, steps_of

SYSTEMS = [each.name for each in cuda_table().system]
CARDS = ["RTX 4090", "V100 SXM2 32GB", "RTX 5090", "RTX 2080 Ti"]
MIRRORS = Mirrors(
    pip_index="https://mirror.example/simple",
    torch_index="https://mirror.example/whl/cu130",
    conda_channel="https://mirror.example/conda/main",
    nvidia_repo="https://mirror.example/cuda",
)


@pytest.mark.needs("shellcheck")
@pytest.mark.parametrize("mirrors", [Mirrors(), MIRRORS], ids=["as set up", "mirrors"])
@pytest.mark.parametrize("route", get_args(Route))
def test_every_script_is_clean(tmp_path: Path, route: Route, mirrors: Mirrors) -> None:
    pairs = zip(cycle(SYSTEMS), CARDS + CARDS, strict=False)
    for system, card in islice(pairs, max(len(SYSTEMS), len(CARDS))):
        chosen = choose(target_named([card], system, None), route)
        (tmp_path / f"{system}-{card}.sh").write_text(script(chosen, mirrors))
    # gcc that nvcc would refuse: no system of today's table has one
    old = cuda_table().system_named("ubuntu24")
    files = [str(path) for path in sorted(tmp_path.glob("*.sh"))]
    assert len(files) == max(len(SYSTEMS), len(CARDS)) and old.gcc
    done = subprocess.run(["shellcheck", *files], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.needs("shellcheck")
def test_shellcheck_would_see_a_fault(tmp_path: Path) -> None:
    text = script(choose(target_named(CARDS[:1], "ubuntu22", None), "toolkit"), Mirrors())
    (tmp_path / "env.sh").write_text(text.replace('root install -D -m 0644 "$new"', "cp $new"))
    done = subprocess.run(["shellcheck", tmp_path / "env.sh"], capture_output=True, check=False)
    assert done.returncode == 1 and b"SC2086" in done.stdout


@pytest.mark.needs("shellcheck")
@pytest.mark.parametrize("system", SYSTEMS)
def test_an_older_gcc_is_installed_where_nvcc_refuses_the_system_s(tmp_path, system) -> None:
    import dataclasses

    target = target_named(["RTX 4090"], system, None)
    newer = dataclasses.replace(target, system=dataclasses.replace(target.system, gcc=16))
    chosen = choose(newer, "toolkit")
    assert "env-gcc-too-new" in {each.id for each in chosen.findings}
    text = script(chosen, Mirrors())
    assert "HOST_GCC=15" in text
    (tmp_path / "env.sh").write_text(text)
    done = subprocess.run(["shellcheck", tmp_path / "env.sh"], capture_output=True, check=False)
    assert done.returncode == 0, done.stdout
    plain = script(choose(target, "toolkit"), Mirrors())
    assert "HOST_GCC" not in plain and "CXX=" not in plain


def test_no_host_stands_in_a_script_but_the_source_of_apex_and_what_the_user_names() -> None:
    for route in get_args(Route):
        chosen = choose(target_named(["RTX 4090"], "ubuntu22", None), route)
        hosts = set(re.findall(r"https?://([\w.-]+)", script(chosen, Mirrors())))
        assert hosts <= {"github.com"}
        named = set(re.findall(r"https?://([\w.-]+)", script(chosen, MIRRORS)))
        assert named <= {"github.com", "mirror.example"} and "mirror.example" in named


@pytest.mark.parametrize(
    "given",
    [
        {"pip_index": "https://x/$(touch /tmp/no)"},
        {"pip_index": "https://x/ y"},
        {"pip_index": "mirror"},
        {"torch_index": 'https://x"; rm -rf /; "'},
        {"nvidia_repo": "https://x/`id`"},
        {"conda_channel": "a b"},
        {"conda_channel": "$(id)"},
        {"image": "x;y"},
        {"image": "x\nRUN y"},
    ],
)
def test_what_is_no_url_does_not_get_into_a_script(given: dict[str, str]) -> None:
    with pytest.raises(UsageError):
        Mirrors(**given)


def test_only_what_fits_the_card_is_installed() -> None:
    turing = script(choose(target_named(["RTX 2080 Ti"], "ubuntu22", None), "toolkit"), Mirrors())
    assert "FLASH_ATTN" not in turing and "APEX_TAG=25.09" in turing
    assert "TORCH_CUDA_ARCH_LIST=7.5" in turing
    plain = script(choose(target_named(["RTX 4090"], "ubuntu22", None), "driver"), Mirrors())
    assert "amp_C" not in plain and "step_cuda" not in plain and "use_toolkit" not in plain


@pytest.mark.parametrize("system", SYSTEMS)
def test_the_head_names_other_ways_to_a_driver_and_how_each_is_undone(system: str) -> None:
    text = script(choose(target_named(["RTX 4090"], system, None), "driver"), Mirrors())
    head = text.split("set -euo pipefail")[0]
    assert ".run" in head and "telinit 3" in head and "--uninstall" in head
    assert "docker run --rm --gpus all" in head
    assert ("ubuntu-drivers" in head) == system.startswith("ubuntu")


def test_volta_gets_the_proprietary_modules() -> None:
    volta = script(choose(target_named(["V100 SXM2 32GB"], "ubuntu22", None), "driver"), Mirrors())
    assert "need nvidia-driver-580\n" in volta and "nvidia-driver-580-open" not in volta
    ada = script(choose(target_named(["RTX 4090"], "ubuntu22", None), "driver"), Mirrors())
    assert "need nvidia-driver-580-open\n" in ada


@pytest.mark.parametrize("route", get_args(Route))
def test_each_step_is_a_function_and_is_named_in_the_head(route: Route) -> None:
    chosen = choose(target_named(["RTX 4090"], "rocky9", None), route)
    text = script(chosen, Mirrors())
    assert re.findall(r"^step_(\w+)\(\)", text, re.MULTILINE) == list(steps_of(chosen))
    assert f"STEPS=({' '.join(steps_of(chosen))})" in text


def test_a_dockerfile_pins_what_the_script_would() -> None:
    chosen = choose(target_named(["A100 SXM4 80GB"], "ubuntu22", None), "container")
    text = dockerfile(chosen, Mirrors())
    assert text.count("FROM nvidia/cuda:13.0") == 1 and "USER trainer" in text
    assert '"torch==2.13.0"' in text and "TORCH_CUDA_ARCH_LIST=8.0" in text
    assert text in script(chosen, Mirrors())
    other = dockerfile(chosen, Mirrors(image="registry.local/cuda:13"))
    assert "FROM registry.local/cuda:13\n" in other


# ---- the script's own functions, run by bash on a folder of its own

HARNESS = """
STATE={state}
root() {{ "$@"; }}
{body}
"""


def functions(chip: str = "RTX 4090", system: str = "ubuntu22") -> str:
    """The script without its last line, which would run it."""
    text = script(choose(target_named([chip], system, None), "driver"), Mirrors())
    return text.removesuffix('main "$@"\n')


def bash(text: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=False)


def test_a_file_is_written_once_and_put_back_by_undo(tmp_path: Path) -> None:
    state, there, new = tmp_path / "state", tmp_path / "there.conf", tmp_path / "a" / "new.conf"
    there.write_text("mine\n")
    stubs = "drop_packages() { :; }; update-initramfs() { :; }"
    write = f"echo x | put {there}; echo y | put {new}"
    body = HARNESS.format(state=state, body=f"{stubs}; {write}; {write}")
    done = bash(functions() + body)
    assert done.returncode == 0, done.stderr
    assert (there.read_text(), new.read_text()) == ("x\n", "y\n")
    assert done.stdout.count("as it should be") == 2
    assert (state / "changes").read_text() == f"file {there}\nfile {new}\n"
    undone = bash(functions() + HARNESS.format(state=state, body=f"{stubs}; undo"))
    assert undone.returncode == 0, undone.stderr
    assert there.read_text() == "mine\n" and not new.exists() and not state.exists()
    again = bash(functions() + HARNESS.format(state=state, body=f"{stubs}; undo"))
    assert again.returncode == 0 and "nothing was changed" in again.stdout


@pytest.mark.parametrize(
    ("have", "wanted", "is_enough"),
    [
        ("580.65.06", "580.65.06", True),
        ("580.95.05", "580.65.06", True),
        ("570.26", "570.124.06", False),
        ("570.124.06", "570.26", True),
        ("535.104.05", "525.60.13", True),
    ],
)
def test_versions_compare_by_number(have: str, wanted: str, is_enough: bool) -> None:
    assert (bash(functions() + f"at_least {have} {wanted}").returncode == 0) == is_enough


@pytest.mark.parametrize("words", ["nonsense", "undo python", "python nonsense"])
def test_an_unknown_step_is_refused_before_any_is_run(words: str) -> None:
    done = bash(functions() + f"step_python() {{ echo ran; }}; main {words}")
    assert done.returncode == 2 and "ran" not in done.stdout and "hint: " in done.stderr


def test_another_system_is_refused() -> None:
    done = bash(functions(system="rocky9") + "main system")
    assert done.returncode == 1 and "the script is for rocky 9" in done.stderr


# ---- the verb


def test_the_verb_writes_a_file_and_says_what_is_in_it(trainrig, tmp_path: Path) -> None:
    out = tmp_path / "new" / "env.sh"
    words = ("--on", "RTX-4090", "--os", "ubuntu24", "--out", str(out), "--json")
    code, shown, err = trainrig("env", "--route", "toolkit", *words)
    answer = json.loads(shown)
    assert code == 0 and not err
    assert answer["file"] == str(out) and answer["script"] is None
    assert answer["torch"]["version"] in out.read_text()
    assert answer["driver"] == "580.65.06" and answer["steps"][0] == "system"
    assert all(each["fix"] for each in answer["findings"])


def test_stdout_is_the_script_and_nothing_else(trainrig) -> None:
    code, out, err = trainrig("env", "--on", "V100-SXM2-32GB", "--os", "ubuntu22")
    assert code == 0 and out.startswith("#!/usr/bin/env bash\n") and out.endswith('main "$@"\n')
    assert "flash_attn needs capability 8.0" in err


def test_nothing_is_written_where_nothing_fits(trainrig, tmp_path: Path) -> None:
    out = tmp_path / "env.sh"
    cards = ("--on", "V100-SXM2-32GB", "--on", "RTX-5090")
    code, shown, err = trainrig("env", *cards, "--os", "ubuntu22", "--out", str(out))
    assert code == 1 and shown == "" and not out.exists() and "no versions fit" in err


def test_a_dockerfile_is_asked_for_by_its_name(trainrig, tmp_path: Path) -> None:
    out = tmp_path / "Dockerfile"
    words = ("env", "--on", "RTX-4090", "--os", "ubuntu22", "--out", str(out))
    code, _, err = trainrig(*words, "--route", "driver")
    assert code == 2 and "--route container" in err
    code, _, _ = trainrig(*words, "--route", "container")
    assert code == 0 and "\nFROM nvidia/cuda" in out.read_text()


@pytest.mark.parametrize(
    "words",
    [
        ("--os", "windows"),
        ("--on", "RTX-4090", "--os", "ubuntu22", "--torch", "1.13"),
        ("--driver", "550.54.14", "--os", "ubuntu22"),
        ("--on", "RTX-4090", "--os", "ubuntu22", "--out", "/proc/no/env.sh"),
        ("--explain", "/no/such.log"),
        ("--try-extension", "--python", "/no/python"),
    ],
)
def test_a_wrong_word_is_one_line_and_a_hint(trainrig, words: tuple[str, ...]) -> None:
    code, out, err = trainrig("env", *words)
    assert code in (2, 3) and out == "" and err.startswith("trainrig: ")
    assert len(err.splitlines()) <= 2 and "Traceback" not in err
