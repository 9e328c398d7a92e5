"""What is ours alone: recomputation, compilation, single blocks, narrow types, refusals."""

from __future__ import annotations

from typing import Any

import pytest

from trainrig import models, workload
from trainrig.errors import UsageError
from trainrig.workload.layout.groups import RECOMPUTE

torch = pytest.importorskip("torch", reason="needs torch")
from trainrig.models import layers  # noqa: E402
from trainrig.models.t5 import RelativeBias, shift_right  # noqa: E402

SHAPES = {
    "gpt2": workload.custom("gpt2", num_layers=2, hidden=64, vocab=96, max_positions=32),
    "gpt-neo": workload.custom(
        "gpt-neo", num_layers=2, hidden=64, vocab=96, max_positions=32, windows=(0, 5)
    ),
    "bert": workload.custom("bert", num_layers=2, hidden=64, vocab=96, max_positions=32),
    "t5": workload.custom("t5", num_layers=2, hidden=64, vocab=96),
    "llama": workload.custom(
        "llama", num_layers=2, hidden=64, num_heads=4, num_kv_heads=2, vocab=96
    ),
}
families = pytest.mark.parametrize("family", SHAPES)


def batch(seed: int = 0) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(seed)
    pair = torch.randint(1, 96, (2, 2, 24), generator=generator)
    return pair[0], pair[1]


def gradients(model: Any) -> dict[str, Any]:
    model.zero_grad()
    model.loss(*batch()).backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


@families
@pytest.mark.parametrize("recompute", ["selective", "full"])
def test_recomputing_changes_no_gradient(family: str, recompute: str) -> None:
    kept = gradients(models.build(SHAPES[family]))
    again = gradients(models.build(SHAPES[family], recompute=recompute))
    assert kept.keys() == again.keys()
    for name, gradient in kept.items():
        torch.testing.assert_close(again[name], gradient, rtol=1e-5, atol=1e-7, msg=name)


@families
def test_recomputing_keeps_less(family: str) -> None:
    none, selective, full = (kept_bytes(family, how) for how in RECOMPUTE)
    assert full < selective < none


def kept_bytes(family: str, recompute: str) -> int:
    """Bytes that forward allocates and does not give back before backward."""
    model = models.build(SHAPES[family], recompute=recompute)
    given = batch()
    model.loss(*given).backward()  # what is made once, such as caches of formulas
    model.zero_grad(set_to_none=True)
    with torch.profiler.profile(profile_memory=True) as seen:
        loss = model.loss(*given)
    kept = sum(event.self_cpu_memory_usage for event in seen.key_averages())
    loss.backward()
    return kept


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # torch's own tracing
@families
def test_compiled_blocks_compute_the_same(family: str) -> None:
    """Traced, and run by torch as it is: what the compiler makes of it is the compiler's."""
    torch._dynamo.reset()
    model = models.build(SHAPES[family])
    exact = gradients(model)
    traced = []

    def backend(graph: Any, inputs: Any) -> Any:
        traced.append(graph)
        return graph.forward

    models.compile_blocks(model, backend=backend, fullgraph=True)
    for name, gradient in gradients(model).items():
        torch.testing.assert_close(gradient, exact[name], rtol=1e-5, atol=1e-7, msg=name)
    # A trace for each kind of block, not for each block: T5 has two kinds, GPT-Neo two masks.
    assert len(traced) == (2 if family in ("t5", "gpt-neo") else 1)


@families
@pytest.mark.parametrize("mixed", [True, False])
def test_bf16_learns_much_as_fp32_does(family: str, mixed: bool) -> None:
    """Under autocast, and with everything in bf16."""
    exact = models.build(SHAPES[family])
    model = models.build(SHAPES[family], dtype=torch.float32 if mixed else torch.bfloat16)
    model.load_state_dict(exact.state_dict())
    with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
        loss = model.loss(*batch())
    assert loss.dtype == torch.float32
    assert float(loss.detach()) == pytest.approx(float(exact.loss(*batch()).detach()), rel=0.02)
    loss.backward()
    for name, truth in gradients(exact).items():
        gradient = dict(model.named_parameters())[name].grad
        if float(truth.norm()) > 1e-6:
            likeness = torch.cosine_similarity(gradient.float().flatten(), truth.flatten(), dim=0)
            assert likeness > 0.9, name


@families
def test_weights_follow_from_the_seed(family: str) -> None:
    first, again, other = (
        models.build(SHAPES[family], seed=seed).state_dict() for seed in (1, 1, 2)
    )
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["tokens.weight"], other["tokens.weight"])
    assert all(bool(torch.isfinite(tensor).all()) for tensor in first.values())


@pytest.mark.parametrize("family", ["gpt2", "gpt-neo", "llama"])
def test_no_token_sees_a_later_one(family: str) -> None:
    model = models.build(SHAPES[family])
    tokens, _ = batch()
    changed = tokens.clone()
    changed[:, 15] = (tokens[:, 15] + 1) % 96
    before, after = model(tokens), model(changed)
    assert torch.equal(before[:, :15], after[:, :15])
    assert not torch.equal(before[:, 15], after[:, 15])


@pytest.mark.parametrize("num_tokens", [4, 5, 10, 13])
@pytest.mark.parametrize("heads_of_keys", [4, 2])
def test_attention_in_a_window_needs_no_mask_of_all_tokens(
    num_tokens: int, heads_of_keys: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GPT-Neo's local layers gave every kernel a (T, T) mask, and flash kernels take none."""
    generator = torch.Generator().manual_seed(3)
    heads = (4, heads_of_keys, heads_of_keys)
    q, k, v = (
        torch.randn(2, n, num_tokens, 8, generator=generator, requires_grad=True) for n in heads
    )
    mask = layers.causal_mask(num_tokens, q.device, 5)
    expected = layers.attend(q, k, v, scale=0.3, mask=mask, attention="plain")
    whole = torch.autograd.grad(expected.square().sum(), (q, k, v))
    monkeypatch.setattr(layers, "causal_mask", None)
    found = layers.attend(q, k, v, scale=0.3, causal=True, window=5, attention="sdpa")
    torch.testing.assert_close(found, expected)
    for own, other in zip(torch.autograd.grad(found.square().sum(), (q, k, v)), whole, strict=True):
        torch.testing.assert_close(own, other)


def test_a_gpu_is_given_windows_and_no_mask() -> None:
    with torch.device("meta"):
        model = models.build(SHAPES["gpt-neo"], device="meta")
    assert model.block_arguments(24, torch.device("cuda"))(1) == (None, 5)
    assert model.block_arguments(24, torch.device("cpu"))(1)[0].shape == (24, 24)


def test_a_window_hides_what_is_further_back() -> None:
    shape = workload.custom(
        "gpt-neo", num_layers=1, hidden=64, vocab=96, max_positions=32, windows=(5,)
    )
    model = models.build(shape)
    tokens, _ = batch()
    changed = tokens.clone()
    changed[:, 3] = (tokens[:, 3] + 1) % 96
    same = (model(tokens) == model(changed)).all(dim=-1)[0]
    assert same[8:].all() and not same[3:8].any()


def test_relative_buckets_by_hand() -> None:
    """8 buckets up to a distance of 16: one each for 0 to 3, then 4-5, 6-7, 8-11, 12 and more."""
    shape = workload.custom("t5", num_layers=1, hidden=64, num_buckets=8, max_distance=16)
    causal = RelativeBias(shape, causal=True)
    back = torch.arange(0, -40, -1)
    assert causal.bucket(back[:16]).tolist() == [0, 1, 2, 3, 4, 4, 5, 5, 6, 6, 6, 6, 7, 7, 7, 7]
    assert causal.bucket(back[16:]).eq(7).all()
    assert causal.bucket(torch.tensor([1, 30])).tolist() == [0, 0]  # later: masked anyway
    both = RelativeBias(shape, causal=False)
    assert both.bucket(torch.tensor([-20, -1, 0, 1, 20])).tolist() == [3, 1, 0, 5, 7]


def test_what_is_written_begins_with_the_start_and_lags_by_one() -> None:
    targets = torch.tensor([[7, 8, 9], [5, -100, -100]])
    assert shift_right(targets).tolist() == [[0, 7, 8], [0, 5, 0]]


@pytest.mark.parametrize("attention", ["sdpa", "plain"])
@pytest.mark.parametrize("decoder", [False, True])
@families
def test_a_block_runs_by_itself(family: str, decoder: bool, attention: str) -> None:
    shape = SHAPES[family]
    if decoder and family != "t5":
        with pytest.raises(UsageError, match="no decoder block"):
            models.build_block(shape, decoder=True)
        return
    block = models.build_block(shape, decoder=decoder, attention=attention)
    x, memory = torch.randn(2, 7, 64, requires_grad=True), torch.randn(2, 9, 64)
    y = block(*models.block_inputs(shape, x, memory if decoder else None))
    y.square().sum().backward()
    assert y.shape == x.shape
    assert x.grad is not None and bool(torch.isfinite(x.grad).all())
    assert all(parameter.grad is not None for parameter in block.parameters())


@pytest.mark.parametrize("choice", [{"recompute": "some"}, {"attention": "flash"}])
def test_unknown_choices_are_refused(choice: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="unknown") as caught:
        models.build(SHAPES["gpt2"], **choice)
    assert caught.value.hint is not None and caught.value.hint.startswith("one of: ")
