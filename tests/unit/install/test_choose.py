"""Versions that go together: for each kind of card the set that fits, and what stands between."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from machine_fakes import healthy, pci_device
from trainrig.catalog.cuda import cuda_table, parts_of
from trainrig.errors import DataError, UsageError
from trainrig.install.choose import Route, choose, system_of, target_here, target_named
from trainrig.machine.snapshot import Missing

UBUNTU = 'ID=ubuntu\nVERSION_ID="22.04"\nPRETTY_NAME="Ubuntu 22.04.5 LTS"\n'


def selected(
    chip: str, system: str = "ubuntu22", route: Route = "toolkit", **more: Any
) -> tuple[str, str, set[str]]:
    """torch, least driver and the ids of the findings."""
    driver, torch = more.get("driver"), more.get("torch")
    chosen = choose(target_named([chip], system, driver), route, torch)
    return chosen.torch.version, chosen.driver, {each.id for each in chosen.findings}


@pytest.mark.parametrize(
    ("chip", "driver", "torch", "least"),
    [
        ("RTX 4090", None, "2.13.0", "580.65.06"),
        ("RTX 4090", "580.95.05", "2.13.0", "580.65.06"),
        ("RTX 4090", "550.54.14", "2.10.0", "525.60.13"),
        ("RTX 4090", "470.82.01", "2.13.0", "580.65.06"),
        ("V100 SXM2 32GB", None, "2.7.1", "525.60.13"),
        ("V100 SXM2 32GB", "535.104.05", "2.7.1", "525.60.13"),
        ("RTX 5090", None, "2.13.0", "580.65.06"),
        ("RTX 5090", "570.124.06", "2.10.0", "570.26"),
        ("RTX 5090", "550.54.14", "2.13.0", "580.65.06"),
        ("A100 SXM4 80GB", "535.104.05", "2.10.0", "525.60.13"),
    ],
)
def test_a_card_and_its_driver_decide(chip: str, driver: str, torch: str, least: str) -> None:
    found, wanted, findings = selected(chip, driver=driver)
    assert (found, wanted) == (torch, least)
    is_old = driver is not None and parts_of(driver) < parts_of(least)
    assert ("env-driver-too-old" in findings) == is_old


def test_a_driver_that_will_do_stays_and_the_newer_torch_is_named() -> None:
    chosen = choose(target_named(["RTX 4090"], "ubuntu24", "550.54.14"), "driver")
    assert not chosen.installs_driver
    (newer,) = [each for each in chosen.findings if each.id == "env-newer-torch"]
    assert "--torch 2.13.0" in newer.fix and "580.65.06" in newer.fix
    assert "env-newer-torch" not in selected("RTX 4090", driver="590.44.01")[2]


def test_a_torch_without_kernels_for_the_card_is_refused_with_one_that_has() -> None:
    chosen = choose(target_named(["V100 SXM2 32GB"], "ubuntu22", None), "driver", "2.13")
    assert not chosen.is_possible
    (finding,) = [each for each in chosen.findings if each.severity == "error"]
    assert finding.id == "env-no-kernels-for-card" and finding.fix == "--torch 2.7.1"


def test_cards_of_generations_without_a_common_wheel_are_refused() -> None:
    both = choose(target_named(["V100 SXM2 32GB", "RTX 5090"], "ubuntu22", None), "driver")
    assert not both.is_possible
    near = choose(target_named(["RTX 3090", "RTX 4090"], "ubuntu22", None), "driver")
    assert near.is_possible and near.target.capabilities == ("8.6", "8.9")


def test_the_open_modules_are_for_turing_and_newer() -> None:
    assert choose(target_named(["RTX 4090"], "ubuntu22", None), "driver").modules == "open"
    volta = choose(target_named(["V100 SXM2 16GB"], "ubuntu22", None), "driver")
    assert volta.modules == "proprietary"


def test_a_branch_that_dropped_the_card_is_an_error() -> None:
    assert "env-driver-too-new-for-card" in selected("V100 SXM2 32GB", driver="590.44.01")[2]
    assert "env-driver-too-new-for-card" not in selected("V100 SXM2 32GB", driver="580.95.05")[2]


def test_a_kepler_card_is_refused_with_its_last_branch() -> None:
    here = target_named(["V100 SXM2 32GB"], "ubuntu22", None)
    chosen = choose(dataclasses.replace(here, capabilities=("3.7",)), "driver")
    told = {each.id: f"{each.evidence}; {each.fix}" for each in chosen.findings}
    assert not chosen.is_possible and chosen.modules == "proprietary"
    assert "driver branch 580" in told["env-driver-too-new-for-card"]
    assert "install branch 470" in told["env-driver-too-new-for-card"]


def test_debian_s_own_driver_is_too_old_for_the_newest_torch() -> None:
    assert "env-needs-nvidia-repository" in selected("RTX 4090", "debian12")[2]
    assert "env-needs-nvidia-repository" not in selected("RTX 4090", "ubuntu24")[2]
    assert "env-needs-nvidia-repository" not in selected("V100 SXM2 32GB", "debian12")[2]


def test_what_needs_nvcc_is_left_out_of_the_driver_route() -> None:
    card = target_named(["RTX 4090"], "ubuntu22", None)
    assert choose(card, "driver").extensions == ("deepspeed", "megatron_core")
    whole = ("flash_attn", "apex", "deepspeed", "megatron_core")
    assert choose(card, "toolkit").extensions == choose(card, "container").extensions == whole
    turing = target_named(["RTX 2080 Ti"], "ubuntu22", None)
    assert "flash_attn" not in choose(turing, "toolkit").extensions


def test_this_machine_is_read_from_its_bus_and_its_release() -> None:
    here = target_here(healthy(), None, UBUNTU)
    assert here.gpus == ("RTX 4090",) and here.capabilities == ("8.9",)
    assert here.system.name == "ubuntu22" and here.driver
    bare = dataclasses.replace(
        healthy(),
        gpus=Missing("NVML: driver not loaded"),
        pci_gpus=(pci_device("0000:01:00.0", "10de:1db5", driver=None),),
        software=dataclasses.replace(healthy().software, nvidia_driver=Missing("not loaded")),
    )
    volta = target_here(bare, None, UBUNTU)
    assert volta.capabilities == ("7.0",) and volta.driver is None
    assert choose(volta, "driver").torch.version == "2.7.1"


def test_a_machine_without_a_card_gets_the_newest_and_is_warned() -> None:
    software = dataclasses.replace(healthy().software, nvidia_driver=Missing("not loaded"))
    empty = dataclasses.replace(healthy(), gpus=(), pci_gpus=(), software=software)
    chosen = choose(target_here(empty, "rocky9", None), "driver")
    assert chosen.is_possible and chosen.torch.version == "2.13.0"
    assert "env-no-gpu" in {each.id for each in chosen.findings}


@pytest.mark.parametrize(
    ("release", "name"),
    [
        (UBUNTU, "ubuntu22"),
        ('ID="rocky"\nVERSION_ID="9.5"\n', "rocky9"),
        ("ID=debian\nVERSION_ID='12'\n", "debian12"),
    ],
)
def test_systems_are_known_by_their_release(release: str, name: str) -> None:
    assert system_of(release).name == name


def test_an_unknown_system_names_those_that_are_known() -> None:
    with pytest.raises(UsageError, match="Arch Linux") as error:
        system_of('ID=arch\nPRETTY_NAME="Arch Linux"\n')
    assert "--os ubuntu22" in (error.value.hint or "")
    with pytest.raises(UsageError):
        system_of("ID=ubuntu\nVERSION_ID=22.041\n")


@pytest.mark.parametrize("words", [("MI300X",), ("no such card",)])
def test_cards_that_cuda_does_not_run_are_refused(words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError):
        target_named(words, "ubuntu22", None)


@pytest.mark.parametrize("driver", ["new", "5;rm", "", "580", "550.54.14\n"])
def test_a_driver_is_a_version(driver: str) -> None:
    with pytest.raises(UsageError, match="no version"):
        target_named(["RTX 4090"], "ubuntu22", driver)


def test_every_row_has_sources_and_a_wrong_one_is_found(tmp_path) -> None:
    table = cuda_table()
    assert all(each.sources for each in (*table.cuda, *table.torch, *table.system))
    assert {each.cuda for each in table.torch} <= {each.version for each in table.cuda}
    text = (cuda_table.__wrapped__.__globals__["PATH"]).read_text()
    broken = tmp_path / "cuda.toml"
    broken.write_text(
        text.replace('sources = ["release-notes", "cpp-extension"]', 'sources = ["x"]')
    )
    with pytest.raises(DataError, match="no source is called 'x'"):
        cuda_table(broken)
    broken.write_text(text.replace('driver = "580.65.06"', "driver = 580"))
    with pytest.raises(DataError, match=r"cuda\.toml"):
        cuda_table(broken)


def test_torch_s_own_table_of_compilers_agrees() -> None:
    """What torch itself refuses is read from its source, without importing it."""
    import ast
    from importlib.util import find_spec
    from pathlib import Path

    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        pytest.skip("needs torch")
    tree = ast.parse((Path(spec.origin).parent / "utils" / "cpp_extension.py").read_text())
    (bounds,) = [
        node.value
        for node in tree.body
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and node.target.id == "CUDA_GCC_VERSIONS"
    ]
    assert isinstance(bounds, ast.Dict)
    below = {
        ast.literal_eval(key): ast.literal_eval(value.elts[1])[0]
        for key, value in zip(bounds.keys, bounds.values, strict=True)
        if key is not None and isinstance(value, ast.Tuple)
    }
    table = cuda_table()
    listed = [(each.version, each.gcc) for each in (*table.cuda, *table.older_cuda)]
    for version, gcc in listed:
        assert gcc == below[version] - 1, version
        assert table.newest_gcc(version) == gcc
    assert table.newest_gcc("12.5") == 13 and table.newest_gcc("12.9") == 14
    assert table.newest_gcc("10.2") is None and table.newest_gcc("99.0") is None
