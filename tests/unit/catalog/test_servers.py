"""A machine's name or file gives the right chip, node and network, or one clear error."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

from trainrig.catalog.lookup import find_chip, normalise
from trainrig.catalog.servers import PATH, find_server, known_servers, read_server, server_dict
from trainrig.errors import DataError, TrainrigError, UsageError

PAGE = Path(__file__).parents[3] / "docs" / "machines.md"
CHIP, CLUSTER = re.findall(r"```toml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def written(folder: Path, text: str, name: str = "my.toml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_servers_of_the_catalog() -> None:
    h100 = find_server("dgx-h100")
    assert (h100.chip.name, h100.gpus, h100.nodes) == ("H100 SXM5 80GB", 8, 1)
    assert h100.fabric == 400e9 and h100.memory == 2048 * 2**30
    assert find_server("NVIDIA DGX H100") == find_server("HGX H100") == h100
    assert find_server("DGX A100").chip.name == "A100 SXM4 80GB"
    assert find_server("DGX B200").chip.name == "B200 SXM"
    assert find_server("4x DGX H100").nodes == 4
    assert server_dict(h100)["source"]["url"].startswith("https://")
    entries = tomllib.loads(PATH.read_text(encoding="utf-8"))["server"]
    assert len(known_servers()) == len(entries)
    for entry in entries:
        for name in (entry["name"], *entry.get("aliases", ())):  # no other chip is called so
            assert find_chip(name) in (None, find_server(name).chip)
        assert find_server(entry["name"]).name == entry["name"]


OTHERWISE = (
    ("H100x8", "H100 SXM5 80GB", 8),
    ("4090x2", "RTX 4090", 2),
    ("2x 4090", "RTX 4090", 2),
    ("H100 SXM5 80GB x 4", "H100 SXM5 80GB", 4),
    ("8*H100", "H100 SXM5 80GB", 8),
    ("h100_sxm5_80gb", "H100 SXM5 80GB", None),
    ("rtx_4090", "RTX 4090", None),
    ("GB200 NVL72", "GB200", 72),
    ("gb300-nvl72", "GB300", 72),
    ("dgx b300", "B300 SXM", 8),
    ("a3-highgpu-8g", "H100 SXM5 80GB", 8),
    ("a3-megagpu-8g", "H100 SXM5 80GB", 8),
    ("a2-highgpu-4g", "A100 SXM4 40GB", 4),
    ("p5e.48xlarge", "H200 SXM 141GB", 8),
    ("p5en.48xlarge", "H200 SXM 141GB", 8),
    ("p6-b200.48xlarge", "B200 SXM", 8),
    ("p6-b300.48xlarge", "B300 SXM", 8),
    ("p6-b300.96xlarge", "B300 SXM", None),
    ("p6e-gb200.36xlarge", "GB200", 4),
    ("p6e-gb300.36xlarge", "GB300", None),
    ("g5.48xlarge", "A10G", 8),
    ("g5.12xlarge", "A10G", None),
    ("g6e.48xlarge", "L40S", 8),
    ("trn2.48xlarge", "Trainium2", 16),
    ("H100 NVL 94GB", "H100 NVL 94GB", None),
    ("RX 7900 XTX", "Radeon RX 7900 XTX", None),
)
"""Official and common names of machines: their chip, and how many there are."""


def test_so_many_of_a_chip() -> None:
    assert find_server("7900 XTX").chip.name == "Radeon RX 7900 XTX", "not 7,900 of TX"
    eight = find_server("8x H100")
    assert (eight.chip.name, eight.requested_name) == ("H100 SXM5 80GB", "H100")
    assert find_server("8x H100 PCIe").requested_name is None
    for text in ("H100", "2x H100", "H100x4"):
        assert find_server(text).chip is eight.chip and find_server(text).requested_name == "H100"
    several = find_server("8x MI350X")
    assert (several.chip.name, several.gpus) == ("MI350X", 8)
    assert find_server("2 × RTX 4090").gpus == 2
    assert find_server("RTX 4090").gpus is None
    for text, chip, gpus in OTHERWISE:
        found = find_server(text)
        assert (found.chip.name, found.gpus) == (chip, gpus), text
    for text in ("GB200 NVL36", "H100 x", "x8", "H100x8x8", "a3 highgpu 8g of ours", "p5en"):
        with pytest.raises(UsageError):
            find_server(text)
    for text in ("0x RTX 4090", "8x RTX 4091", "RTX", "2x TPU", "", "nothing.of.that"):
        with pytest.raises(UsageError):
            find_server(text)


@pytest.mark.parametrize(
    ("text", "chip", "gpus", "gib"),
    [
        ("Kaggle 2xT4", "T4", 2, 16),
        ("colab T4", "T4", None, 16),
        ("v6e-256", "TPU v6e", 256, 32),
        ("v4-8", "TPU v4", 4, 32),
        ("TPU v5e-16", "TPU v5e", 16, 16),
        ("RTX 4090 48GB", "RTX 4090 48GB", None, 48),
        ("RTX 3090 24GB", "RTX 3090", None, 24),
        ("4x A6000 48G", "RTX A6000", 4, 48),
        ("2x 2080 Ti 22GB", "RTX 2080 Ti 22GB", 2, 22),
    ],
)
def test_machines_as_people_rent_and_change_them(
    text: str, chip: str, gpus: int | None, gib: int
) -> None:
    found = find_server(text)
    assert (found.chip.name, found.gpus) == (chip, gpus)
    assert found.chip.memory.size == gib * 1024.0**3


@pytest.mark.parametrize("text", ["RTX 3090 48GB", "v4-1", "v9-8", "Kaggle", "kaggle 0xT4"])
def test_what_nobody_sells_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        find_server(text)


def test_several_racks_and_instances() -> None:
    for text, chip, gpus, nodes in (
        ("2x GB200 NVL72", "GB200", 72, 2),
        ("GB200 NVL72 x2", "GB200", 72, 2),
        ("2x a3-megagpu-8g", "H100 SXM5 80GB", 8, 2),
        ("a3-megagpu-8g x 4", "H100 SXM5 80GB", 8, 4),
        ("3 × p5en.48xlarge", "H200 SXM 141GB", 8, 3),
        ("2x g5.12xlarge", "A10G", None, 2),
        ("2x DGX H100", "H100 SXM5 80GB", 8, 2),
    ):
        found = find_server(text)
        assert (found.chip.name, found.gpus, found.nodes) == (chip, gpus, nodes), text
    assert find_server("g5.12xlarge").is_uncounted and not find_server("g5.48xlarge").is_uncounted
    for text in ("2x GB200 NVL36", "GB200 NVL36 x2", "0x GB200 NVL72"):
        with pytest.raises(UsageError):
            find_server(text)


def test_the_page_s_files_are_read(tmp_path: Path) -> None:
    chip = read_server(written(tmp_path, CHIP, "my-chip.toml")).chip
    assert (chip.name, chip.memory.size, chip.memory.bandwidth, chip.board.tdp) == (
        "Nova 1",
        96 * 2**30,
        4e12,
        600,
    )
    assert {peak.dtype: peak.rate for peak in chip.peaks}["fp8"] == 1600e12
    assert chip.link.bandwidth == 900e9
    cluster = find_server(str(written(tmp_path, CLUSTER)))
    assert (cluster.chip.name, cluster.gpus, cluster.nodes) == ("H100 SXM5 80GB", 8, 4)
    assert (cluster.fabric, cluster.host_memory, cluster.disk) == (400e9, 400e9, 12e9)
    assert (cluster.link, cluster.p2p) == ("nvlink", True)
    own = CLUSTER.replace('name = "H100 SXM5 80GB"', 'file = "my-chip.toml"')
    assert find_server(str(written(tmp_path, own))).chip.name == "Nova 1"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (CHIP.replace("memory_gib = 96\n", ""), "memory_gib is missing"),
        (CHIP.replace("memory_gib = 96", "memory_gib = -1"), "memory_gib"),
        (CHIP.replace("memory_gib", "memory_gb"), "unknown key 'memory_gb'"),
        (CHIP.replace("bf16 = 800, fp8", "fp4 = 800, fp8").replace(", fp32 = 60", ""), "none of"),
        (CHIP.replace("bf16 = 800", 'bf16 = "much"'), "bf16 in [peaks] is"),
        (CHIP.replace("bf16 = 800", "bf16 = 8e14"), "peaks.bf16 = 8e+14 is too much"),
        (
            CHIP.replace("memory_gib = 96", "memory_gib = 103e9"),
            "memory_gib = 1.03e+11 is too much",
        ),
        (CHIP.replace("= 4000", "= 4e12"), "bandwidth_gb_s = 4e+12 is too much"),
        (CLUSTER.replace("gbps = 3200", "gbps = 3.2e12"), "fabric.gbps = 3.2e+12 is too much"),
        (CHIP + "\n[fabric", "is not TOML"),
        ("", "name"),
        (CLUSTER.replace("chips = 8", "chips = 0"), "chips in [node] is 0, not 1 or more"),
        (CLUSTER.replace("[fabric]", "[fabrics]"), "unknown key 'fabrics'"),
        (CLUSTER.replace("[chips]", "[chps]"), "unknown key 'chps'"),
        (CLUSTER.replace('"H100 SXM5 80GB"', '"H100 SXM6"'), "H100 SXM6"),
        (CLUSTER.replace('name = "H100 SXM5 80GB"', 'file = "absent.toml"'), "cannot read"),
        (CLUSTER.replace('name = "H100 SXM5 80GB"\n', ""), "either a name or a file"),
        (CLUSTER.replace('kind = "nvlink"', 'kind = "string"'), "kind in [links] is"),
    ],
)
def test_a_wrong_file_is_one_error(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(TrainrigError) as refused:
        read_server(written(tmp_path, text))
    assert says in refused.value.message and "\n" not in refused.value.message
    assert refused.value.exit_code == 2 and refused.value.hint


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        (CLUSTER.replace("[chips]", "[chps]"), "did you mean chips?"),
        (CHIP.replace("bf16 = 800", "bf61 = 800"), "did you mean bf16?"),
        (CHIP.replace("peaks", "peeks"), "did you mean peaks?"),
    ],
)
def test_a_misspelt_key_is_told_which_was_meant(tmp_path: Path, text: str, hint: str) -> None:
    with pytest.raises(TrainrigError) as refused:
        read_server(written(tmp_path, text))
    assert refused.value.hint == hint


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.toml", tmp_path):
        with pytest.raises(DataError, match="cannot read"):
            read_server(path)
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="not TOML"):
        find_server(str(tmp_path / "binary.toml"))


def test_a_server_s_name_may_be_written_in_any_way() -> None:
    for server in known_servers():
        assert find_server(server.name.lower().replace(" ", "-")) == server
        assert normalise(server.name)


# ---- names as sold


@pytest.mark.parametrize(
    ("name", "chip", "gpus"),
    [
        ("DGX A100 640GB", "A100 SXM4 80GB", 8),
        ("DGX A100 320GB", "A100 SXM4 40GB", 8),
        ("DGX-2", "V100 SXM2 32GB", 16),
        ("HGX H20", "H20 96GB", 8),
        ("H100 HGX", "H100 SXM5 80GB", 8),
        ("HGX H100 4-GPU", "H100 SXM5 80GB", 4),
        ("BM.GPU.A10.4", "A10", 4),
        ("GB200 NVL72", "GB200", 72),
        ("Atlas 800T A2", "Ascend 910B", 8),
        ("CloudMatrix 384", "Ascend 910C", 384),
        ("Standard_ND96isr_H200_v5", "H200 SXM 141GB", 8),
        ("Standard_ND96isr_MI300X_v5", "MI300X", 8),
        ("Standard_ND96amsr_A100_v4", "A100 SXM4 80GB", 8),
        ("Standard_NC48ads_A100_v4", "A100 PCIe 80GB", 2),
        ("BM.GPU.H100.8", "H100 SXM5 80GB", 8),
        ("BM.GPU.A100-v2.8", "A100 SXM4 80GB", 8),
        ("BM.GPU4.8", "A100 SXM4 40GB", 8),
        ("gd-8xh100ib-i128", "H100 SXM5 80GB", 8),
        ("TPU v5p-256", "TPU v5p", 128),
        ("trn3.48xlarge", "Trainium3", None),
    ],
)
def test_a_machine_is_found_by_the_name_it_is_sold_under(name, chip, gpus, trainrig) -> None:
    server = find_server(name)
    assert (server.chip.name, server.gpus) == (chip, gpus)
    code, out, err = trainrig("catalog", name, "--json")
    assert code == 0, err
    content = json.loads(out)
    assert (content["chip"], content["gpus"]) == (chip, gpus)


@pytest.mark.parametrize("name", ["HGX RTX 4090", "HGX", "BM.GPU.X1.8", "Standard_D8s_v5"])
def test_a_name_of_no_machine_is_refused(name: str) -> None:
    with pytest.raises(UsageError):
        find_server(name)


@pytest.mark.parametrize(
    ("name", "total"),
    [("DGX A100", 4.8e12), ("DGX H100", 7.2e12), ("DGX B200", 14.4e12), ("GB200 NVL72", 129.6e12)],
)
def test_nvswitches_carry_the_links_of_all_chips(name: str, total: float) -> None:
    assert find_server(name).switch_bandwidth == pytest.approx(total)


@pytest.mark.parametrize("name", ["CloudMatrix 384", "g5.48xlarge", "8x H100 SXM5 80GB", "DGX-1"])
def test_without_a_known_nvswitch_there_is_no_total(name: str) -> None:
    assert find_server(name).switch_bandwidth is None
