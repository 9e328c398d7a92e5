"""Weights both ways: what is exported is loaded by the real libraries, and begins trainings."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"
torch = pytest.importorskip("torch", reason="needs torch")
transformers = pytest.importorskip("transformers", reason="needs transformers")

from trainrig import models  # noqa: E402
from trainrig.errors import DataError, StoreError, UsageError  # noqa: E402
from trainrig.train.config import Experiment, check  # noqa: E402
from trainrig.train.config_file import experiment_of  # noqa: E402
from trainrig.train.native import checkpoint, safe_reader, weight_source  # noqa: E402
from trainrig.train.native.export_weights import export  # noqa: E402
from trainrig.train.native.loop import Engine  # noqa: E402
from trainrig.train.native.sampling import generate  # noqa: E402
from trainrig.train.native.weight_source import weights_of  # noqa: E402
from trainrig.workload import find  # noqa: E402
from trainrig.workload.hf_config import read_config  # noqa: E402

smoke, acceptance = pytest.mark.smoke, pytest.mark.acceptance
SUPPORT = Path(__file__).resolve().parents[1] / "support"
SRC = Path(__file__).resolve().parents[2] / "src"
_SMALL = "num_layers=2,hidden=32,num_heads=2"
MODELS = {
    "gpt2": f"gpt2:{_SMALL},vocab=400,max_positions=64",
    "gpt-neo": f"gpt-neo:{_SMALL},vocab=416,max_positions=64",
    "llama": f"llama:{_SMALL},num_kv_heads=1,vocab=400,max_positions=64",
    "bert": f"bert:{_SMALL},vocab=400,max_positions=64",
    "t5": f"t5:{_SMALL},vocab=400",
}
STEPS = 6


def experiment(family: str, data: Path, **changes: Any) -> Experiment:
    keys = {"model": MODELS[family], "data": str(data), "batch_size": 4, "seq_len": 24}
    keys |= {"steps": STEPS, "precision": "fp32", "lr": 1e-2, "device": "cpu"}
    return experiment_of(keys | changes)


@pytest.fixture(scope="module")
def run_of(
    prepared_text: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], tuple[Path, Engine]]:
    """A run's folder with the checkpoint of a model of some family, and its engine."""
    made: dict[str, tuple[Path, Engine]] = {}

    def run(family: str) -> tuple[Path, Engine]:
        if family not in made:
            own = experiment(family, prepared_text)
            folder = tmp_path_factory.mktemp(family)
            with Engine(own, check(own)) as engine:
                engine.run(lambda _: None, lambda step: step >= own.steps)
            with checkpoint.Saver(engine, folder / ".checkpoints" / "01-native") as saver:
                saver.save(last=True)
            made[family] = folder, engine
        return made[family]

    return run


def weights(engine: Engine) -> dict[str, Any]:
    return {name: weight.detach() for name, weight in engine.model.named_parameters()}


def same(engine: Engine, folder: Path) -> bool:
    read = weights_of(folder, engine.shape)
    return all(torch.equal(read(name), weight) for name, weight in weights(engine).items())


def loaded(folder: Path, engine: Engine) -> tuple[Any, dict[str, Any]]:
    kind = {"bert": "AutoModelForMaskedLM", "t5": "AutoModelForSeq2SeqLM"}
    auto = getattr(transformers, kind.get(engine.shape.family, "AutoModelForCausalLM"))
    model, told = auto.from_pretrained(folder, output_loading_info=True)
    return model.eval(), told


# ---- Hugging Face


@pytest.mark.parametrize("family", MODELS)
def test_exported_weights_load_in_transformers_with_the_same_logits(
    family: str, run_of: Any, tmp_path: Path
) -> None:
    run, engine = run_of(family)
    found = export(run, to="huggingface", out=tmp_path / "out")
    assert found.step == STEPS and not found.notes
    read = read_config(tmp_path / "out" / "config.json")
    assert read.replace(name="", windows=()) == engine.shape.replace(name="", windows=())
    theirs, told = loaded(tmp_path / "out", engine)
    wrong = [told[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")]
    assert not any(wrong), wrong
    tokens = torch.arange(5, 29).view(2, 12)
    with torch.no_grad():
        if family == "t5":
            ours = engine.model(tokens, tokens[:, :7])
            logits = theirs(input_ids=tokens, decoder_input_ids=tokens[:, :7]).logits
        else:
            ours, logits = engine.model(tokens), theirs(input_ids=tokens).logits
    assert (ours - logits).abs().max() < 1e-5 * ours.std() + 1e-5
    assert ours.std() > 0.01
    assert same(engine, tmp_path / "out")


@pytest.mark.parametrize(
    "family", ["gpt2", *(pytest.param(other, marks=acceptance) for other in ("llama", "gpt-neo"))]
)
def test_transformers_generates_the_same_tokens(family: str, run_of: Any, tmp_path: Path) -> None:
    """gpt-neo's vocabulary has rows that no token has: neither of the two generates them."""
    run, engine = run_of(family)
    export(run, to="huggingface", out=tmp_path / "out")
    model, _ = loaded(tmp_path / "out", engine)
    coder = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    for prompt in ("the cat", "home again and", "mat"):
        ours = generate(run, prompt, max_tokens=16)
        ids = coder(prompt, return_tensors="pt")
        theirs = model.generate(**ids, max_new_tokens=16, do_sample=False)[0]
        theirs = theirs[ids["input_ids"].shape[1] :]
        ended = theirs[-1] == coder.eos_token_id
        assert coder.decode(theirs[:-1] if ended else theirs) == ours.text
        assert ours.tokens == len(theirs) - int(ended)


def test_narrow_weights_and_several_files(
    run_of: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, engine = run_of("llama")
    monkeypatch.setattr("trainrig.train.native.export_weights.LARGEST_FILE", 20_000)
    found = export(run, to="huggingface", out=tmp_path / "out", precision="bf16")
    assert sum(name.endswith(".safetensors") for name in found.files) > 2
    model, told = loaded(tmp_path / "out", engine)
    assert model.dtype is torch.bfloat16 and not told["missing_keys"]
    read = weights_of(tmp_path / "out", engine.shape)
    for name, weight in weights(engine).items():
        assert torch.equal(read(name), weight.bfloat16().float())


def test_what_is_written_wrong_is_found_and_leaves_nothing(
    run_of: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from safetensors import torch as files

    whole, name = files.save_file, "transformer.ln_f.bias"

    def flip(tensors: dict[str, Any], *rest: Any, **named: Any) -> None:
        whole(tensors | {name: tensors[name] + 1e-6}, *rest, **named)

    monkeypatch.setattr(files, "save_file", flip)
    run, _ = run_of("gpt2")
    with pytest.raises(StoreError, match=r"norm\.bias is read back with other values"):
        export(run, to="huggingface", out=tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_one_line_and_leaves_nothing(
    run_of: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from safetensors import SafetensorError
    from safetensors import torch as files

    def full(*_: Any, **__: Any) -> None:
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(files, "save_file", full)
    run, _ = run_of("gpt2")
    with pytest.raises(StoreError, match=r"cannot write .*No space left on device"):
        export(run, to="huggingface", out=tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_weights_beside_those_that_transformers_loads_are_left(run_of: Any, tmp_path: Path) -> None:
    """Mistral's folders hold the same once more, as consolidated.safetensors."""
    run, engine = run_of("llama")
    out = tmp_path / "out"
    export(run, to="huggingface", out=out)
    from safetensors.torch import save_file

    save_file({"layers.0.attention.wq.weight": torch.ones(2, 2)}, out / "consolidated.safetensors")
    assert same(engine, out)
    (out / "model.safetensors").rename(out / "model-00001-of-00001.safetensors")
    names = {"weight_map": {"model.norm.weight": "model-00001-of-00001.safetensors"}}
    (out / "model.safetensors.index.json").write_text(json.dumps(names))
    assert same(engine, out)


# ---- what is refused


def test_a_folder_that_exists_stays_as_it_is(run_of: Any, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("kept")
    with pytest.raises(UsageError, match="exists"):
        export(run_of("gpt2")[0], to="huggingface", out=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_refusals_are_one_line(
    run_of: Any, tmp_path: Path, trainrig: Callable[..., tuple[int, str, str]]
) -> None:
    run, out = str(run_of("bert")[0]), str(tmp_path / "out")
    for words, told in (
        ((run, "--to", "megatron"), "own BERT has its norms before the sums"),
        ((run, "--to", "tensorflow"), "unknown form 'tensorflow'"),
        ((run, "--to", "deepspeed", "--precision", "bf16"), "holds fp32 weights"),
        ((str(tmp_path), "--to", "megatron"), "no weights that can be read"),
        ((str(tmp_path / "none"), "--to", "megatron"), "is no folder"),
    ):
        code, text, error = trainrig("export", *words, "--out", out)
        assert code == 2 and text == "" and told in error, error
        assert error.count("\n") == 2 and "hint" in error
    assert not (tmp_path / "out").exists()


def test_a_damaged_checkpoint_is_not_exported(run_of: Any, tmp_path: Path) -> None:
    run, _ = run_of("gpt2")
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    (file,) = copy.glob(".checkpoints/*/step-*/__0_0.distcp")
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with pytest.raises(DataError, match="has changed since it was saved"):
        export(copy, to="huggingface", out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("to", ["huggingface", "megatron", "deepspeed"])
def test_another_models_weights_are_refused_by_the_first_tensor_that_differs(
    to: str, run_of: Any, tmp_path: Path
) -> None:
    run, engine = run_of("gpt2")
    export(run, to=to, out=tmp_path / "out")
    assert same(engine, tmp_path / "out")
    first = {"megatron": "embedding.word_embeddings.weight"}.get(to, "transformer.wte.weight")
    for source, name in ((tmp_path / "out", first), (run, "tokens.weight")):
        with pytest.raises(DataError, match=rf"another model: {name} ") as refused:
            weights_of(source, find(MODELS["gpt2"].replace("hidden=32", "hidden=64")))
        assert "(400, 32), the shape asks for (400, 64)" in refused.value.message
    with pytest.raises(DataError, match="another model: the weights have no"):
        weights_of(tmp_path / "out", find(MODELS["gpt2"].replace("num_layers=2", "num_layers=3")))


def test_a_layer_of_a_stacked_tensor_is_read_by_itself(run_of: Any, tmp_path: Path) -> None:
    """The pieces that hold some of it are read; Megatron and we save one for each layer."""
    import torch.distributed.checkpoint as dcp

    run, engine = run_of("gpt2")
    export(run, to="megatron", out=tmp_path / "out")
    stored = safe_reader.SafeReader(tmp_path / "out" / "release").read_metadata()
    for name, of in stored.state_dict_metadata.items():
        if name.startswith("decoder.layers.") and hasattr(of, "chunks"):
            assert len(of.chunks) == of.size[0] == engine.shape.num_layers, name
    whole = torch.arange(24.0).view(4, 2, 3)
    safe_reader.ignore_warning()
    dcp.save({"stacked": whole, "alone": whole[0]}, checkpoint_id=tmp_path, no_dist=True)
    for row in range(4):
        assert torch.equal(weight_source.read_row(tmp_path, "stacked", row), whole[row])
    sizes, get = weight_source.open_distributed(tmp_path)
    assert sizes == {"stacked": (4, 2, 3), "alone": (2, 3)} and torch.equal(get("alone"), whole[0])


def test_a_training_begins_where_the_source_ended(
    run_of: Any, prepared_text: Path, tmp_path: Path
) -> None:
    """Its first loss is that of the source's model on the same samples, not of fresh weights."""
    run, engine = run_of("gpt2")
    export(run, to="huggingface", out=tmp_path / "out")
    losses = {}
    for name, init in (("fresh", ""), ("run", str(run)), ("folder", str(tmp_path / "out"))):
        own = experiment("gpt2", prepared_text, init=init)
        rows: list[Any] = []
        with Engine(own, check(own)) as begun:
            begun.run(rows.append, lambda step: step >= 1)
        losses[name] = rows[0]["loss"]
    own = experiment("gpt2", prepared_text)
    rows = []
    with Engine(own, check(own), weights=engine.model.state_dict()) as begun:
        begun.run(rows.append, lambda step: step >= 1)
    assert losses["run"] == losses["folder"] == rows[0]["loss"] < losses["fresh"] - 0.1


def test_the_model_is_the_sources_where_none_is_named(run_of: Any, tmp_path: Path) -> None:
    run, _ = run_of("llama")
    assert experiment_of({"init": str(run), "seq_len": 24}).model == MODELS["llama"]
    export(run, to="huggingface", out=tmp_path / "out")
    own = experiment_of({"init": str(tmp_path / "out"), "seq_len": 24})
    assert find(own.model).attention.num_kv_heads == 1
    for to in ("megatron", "deepspeed"):
        export(run, to=to, out=tmp_path / to)
        own = experiment_of({"init": str(tmp_path / to), "seq_len": 24})
        assert find(own.model).attention.num_kv_heads == 1


def test_weights_that_do_not_say_so_are_of_the_model_that_is_named(
    run_of: Any, tmp_path: Path
) -> None:
    """As Megatron and DeepSpeed save them."""
    run, engine = run_of("llama")
    for to in ("megatron", "deepspeed"):
        export(run, to=to, out=tmp_path / to)
        (tmp_path / to / "config.json").unlink()
        with pytest.raises(UsageError, match="does not say of which model"):
            experiment_of({"init": str(tmp_path / to), "seq_len": 24})
        with pytest.raises(UsageError, match="does not say of which model") as refused:
            export(tmp_path / to, to="huggingface", out=tmp_path / f"{to}-back")
        assert "--model" in str(refused.value.hint)
        other, own = MODELS["llama"].replace("hidden=32", "hidden=64"), MODELS["llama"]
        with pytest.raises(DataError, match="another model"):
            export(tmp_path / to, to="huggingface", out=tmp_path / f"{to}-back", model=other)
        export(tmp_path / to, to="huggingface", out=tmp_path / f"{to}-back", model=own)
        assert same(engine, tmp_path / f"{to}-back")


# ---- Megatron-Core and DeepSpeed, by real ranks


def ranks(program: str, number: int, folder: Path, *words: object) -> None:
    """So many ranks of a program of tests/support, side by side; each ends with 0."""
    port = 20000 + os.getpid() % 20000
    shared = os.environ | {"PYTHONPATH": f"{SRC}:{SUPPORT}", "MASTER_ADDR": "localhost"}
    shared |= {"MASTER_PORT": str(port), "WORLD_SIZE": str(number), "OMP_NUM_THREADS": "1"}
    started = []
    for rank in range(number):
        with (folder / f"rank{rank}.log").open("w") as log:
            started.append(
                subprocess.Popen(
                    [sys.executable, SUPPORT / program, *map(str, words)],
                    env=shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
                    stdout=log,
                    stderr=log,
                )
            )
    try:
        codes = [process.wait(300) for process in started]
    finally:
        for process in started:
            process.kill()
    assert codes == [0] * number, (folder / "rank0.log").read_text()[-2000:]


@pytest.mark.parametrize(
    ("family", "tp", "pp"),
    [
        pytest.param("gpt2", 1, 1, marks=smoke),
        pytest.param("gpt2", 2, 1, marks=acceptance),
        pytest.param("gpt2", 1, 2, marks=acceptance),
        pytest.param("llama", 1, 1, marks=acceptance),
        pytest.param("llama", 1, 2, marks=acceptance),
    ],
)
def test_megatron_core_loads_what_is_exported_and_we_read_what_it_saves(
    family: str, tp: int, pp: int, run_of: Any, tmp_path: Path
) -> None:
    pytest.importorskip("megatron.core", reason="needs megatron-core")
    run, engine = run_of(family)
    export(run, to="megatron", out=tmp_path / "out")
    ranks(
        "megatron_weights_ranks.py",
        tp * pp,
        tmp_path,
        *(tmp_path / "out", tmp_path / "again", tp, pp),
    )
    assert same(engine, tmp_path / "again")
    if tp == pp == 1:
        with torch.no_grad():
            ours = engine.model(torch.arange(1, 17)[None])
        assert (torch.load(tmp_path / "logits.pt") - ours).abs().max() < 1e-5


@pytest.mark.parametrize("stage", [pytest.param(1, marks=smoke), pytest.param(3, marks=acceptance)])
def test_deepspeed_loads_the_universal_format(stage: int, run_of: Any, tmp_path: Path) -> None:
    """Weights and AdamW's first moments are bitwise the training's."""
    pytest.importorskip("deepspeed", reason="needs deepspeed")
    run, engine = run_of("gpt2")
    export(run, to="deepspeed", out=tmp_path / "out")
    export(run, to="huggingface", out=tmp_path / "hf")
    ranks(
        "deepspeed_weights_rank.py",
        1,
        tmp_path,
        *(tmp_path / "out", tmp_path / "hf"),
        tmp_path / "found.pt",
        stage,
    )
    found = torch.load(tmp_path / "found.pt")
    assert found["steps"] == STEPS
    wanted = models.hf_weights.to_hugging_face(engine.shape, weights(engine), copies=False)
    moments = {
        name: engine.optimizer.state[master]["exp_avg"] for name, master in engine.weights.owned()
    }
    firsts = models.hf_weights.to_hugging_face(engine.shape, moments, copies=False)
    assert found["weights"].keys() == wanted.keys()
    for name, (weight, first) in found["weights"].items():
        assert torch.equal(weight, wanted[name]), name
        assert torch.equal(first, firsts[name]) and first.abs().max() > 0, name


# ---- the whole way, as a user goes it


@acceptance
def test_trained_exported_generated_and_trained_on(
    prepared_text: Path, tmp_path: Path, trainrig: Callable[..., tuple[int, str, str]]
) -> None:
    """Twenty steps on two tensor-parallel ranks, exported, generated, begun from by Megatron."""
    keys = ["--model", MODELS["gpt2"], "--data", str(prepared_text), "--seq-len", "32"]
    keys += ["--precision", "fp32", "--device", "cpu", "--out", str(tmp_path / "runs"), "--json"]
    code, text, _ = trainrig("train", *keys, "--steps", "20", "--nproc", "2", "--tp", "2")
    assert code == 0
    run = json.loads(text)["run"]
    out = str(tmp_path / "out")
    code, text, _ = trainrig("export", run, "--to", "huggingface", "--out", out, "--json")
    assert code == 0 and json.loads(text)["step"] == 20
    code, text, _ = trainrig("generate", run, "--prompt", "the cat", "--max-tokens", "12", "--json")
    code, exported, _ = trainrig(
        "generate", out, "--prompt", "the cat", "--max-tokens", "12", "--json"
    )
    assert code == 0 and json.loads(exported)["text"] == json.loads(text)["text"]
    model = transformers.AutoModelForCausalLM.from_pretrained(out)
    coder = transformers.AutoTokenizer.from_pretrained(out)
    ids = coder("the cat", return_tensors="pt")
    theirs = model.generate(**ids, max_new_tokens=12, do_sample=False)[0]
    assert coder.decode(theirs[ids["input_ids"].shape[1] :]) == json.loads(text)["text"]
    pytest.importorskip("megatron.core", reason="needs megatron-core")
    more = ["--init", out, "--framework", "megatron", "--nproc", "2", "--tp", "2", "--steps", "3"]
    code, text, _ = trainrig("train", *keys[2:], *more)
    (row,) = json.loads(text)["experiments"]
    assert code == 0 and row["losses"][0] < 5.5
