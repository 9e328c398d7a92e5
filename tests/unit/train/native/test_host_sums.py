"""Gradients that are sums over tokens, in half precision on a host: rounded once."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn

from trainrig import models
from trainrig.train.native import host_sums
from trainrig.workload import find

TOKENS, WIDTH = 1408, 16
ONE_ROUNDING = 2**-8
"""Of bf16, and what the summands' own order moves in fp32 is far below it."""


def gradients(model: nn.Module, given: torch.Tensor, after: torch.Tensor) -> list[torch.Tensor]:
    model(given).backward(after)
    return [weight.grad.double() for weight in model.parameters() if weight.grad is not None]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_norm_and_an_embedding_have_the_sum_of_all_tokens(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    after = (torch.randn(TOKENS, WIDTH) * 0.1 + 0.1).to(dtype)  # nearly all of one sign
    x, same = torch.randn(TOKENS, WIDTH).to(dtype), torch.zeros(TOKENS, dtype=torch.long)
    for made, given in ((nn.LayerNorm(WIDTH), x), (nn.Embedding(2, WIDTH), same)):
        exact = type(made)(*((WIDTH,) if made.weight.ndim == 1 else (2, WIDTH))).double()
        exact.load_state_dict(made.to(dtype).state_dict())
        host_sums.apply(made)
        wanted = gradients(exact, given if given is same else x.double(), after.double())
        for own, right in zip(gradients(made, given, after), wanted, strict=True):
            assert (own - right).norm() <= ONE_ROUNDING * right.norm(), type(made)
        assert made(given).dtype is dtype


def test_an_embeddings_gradient_is_torchs_but_for_rounding() -> None:
    """Rows that do not occur and the one of padding have none; what is unusual is torch's own."""
    tokens = torch.tensor([[3, 0, 3], [1, 4, 4]])
    after = torch.randn(2, 3, 4)
    for keys in ({}, {"padding_idx": 1}, {"padding_idx": -1}, {"scale_grad_by_freq": True}):
        plain, own = (nn.Embedding(5, 4, **keys).bfloat16() for _ in range(2))
        own.load_state_dict(plain.state_dict())
        host_sums.apply(own)
        assert torch.equal(own(tokens), plain(tokens))
        for model in (plain, own):
            model(tokens).backward(after.bfloat16())
        torch.testing.assert_close(own.weight.grad, plain.weight.grad, rtol=2**-7, atol=2**-7)
        assert not own.weight.grad[2].any()


def test_the_norm_of_many_numbers_is_theirs() -> None:
    """Where clipping and engines take it: torch's own is 4e-4 off, in a process of its own."""
    program = (
        "import torch\nfrom trainrig.train.native import host_sums\n"
        "torch.manual_seed(0)\nx = torch.randn(10**7)\n"
        "exact = x.double().square().sum().sqrt()\n"
        "def gap(found):\n    return abs(float(found) / float(exact) - 1)\n"
        "host_sums.install_norms()\nweight = torch.nn.Parameter(x)\nweight.grad = x\n"
        "found = [torch.linalg.vector_norm(x), torch.norm(x), torch.norm(x, p=2), x.new_zeros(1)]\n"
        "found[-1] = torch.nn.utils.clip_grad_norm_([weight], 1e9)\n"
        "found += [torch._foreach_norm([x])[0], host_sums.total_norm([x[:5000], x[5000:]])]\n"
        "assert max(map(gap, found)) < 1e-6, [*map(gap, found)]\n"
        "rows = torch.linalg.vector_norm(x.view(10, -1), dim=1)\n"
        "assert rows.shape == (10,) and gap(torch.linalg.vector_norm(x, 1)) > 1\n"
        "assert torch.norm(x.bfloat16()).dtype is torch.bfloat16\n"
        "assert max(gap(torch.norm(input=x)), gap(torch._foreach_norm([x], 2)[0])) < 1e-2\n"
        "assert torch._foreach_norm([x], 2, torch.float64)[0].dtype is torch.float64\n"
        "zero = torch.zeros(9999, requires_grad=True)\n"
        "torch.norm(zero).backward()\nassert not zero.grad.any()\n"
        "assert torch.norm(torch.ones(9999).to_sparse()) > 99\n"
        "assert float(torch.norm(torch.ones(3))) == float(host_sums.total_norm([torch.ones(3)]))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()


def test_what_torch_adds_up_right_is_torchs_own() -> None:
    """fp32, norms without a mean, and whatever has another forward already."""
    x = torch.randn(3, 4)
    norm, plain = nn.LayerNorm(4), nn.LayerNorm(4)
    host_sums.apply(norm)
    assert torch.equal(norm(x), plain(x))
    rms = nn.Sequential(nn.RMSNorm(4))
    host_sums.apply(rms)
    assert "forward" not in vars(rms[0])
    taken = models.build(find("bert:num_layers=1,hidden=8,num_heads=2,vocab=16"), unfused=("norm",))
    before = {name: vars(part).get("forward") for name, part in taken.named_modules()}
    host_sums.apply(taken)
    found = {name: vars(part).get("forward") for name, part in taken.named_modules()}
    changed = {name for name in found if found[name] is not before[name]}
    assert changed == {"tokens", "positions", "segments"}


def test_torch_s_functions_keep_their_names_which_torch_compile_asks_for() -> None:
    """In a process of its own: what is put in place of torch's functions stays there."""
    program = (
        "import torch\n"
        "from trainrig.train.native import host_sums\n"
        "host_sums.install_norms()\n"
        "torch.overrides.get_testing_overrides()\n"
        "print(torch.norm.__name__, torch.linalg.vector_norm.__name__)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.split()[0] == "norm"
