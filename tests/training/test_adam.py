"""Adam of one tensor against torch's."""

from __future__ import annotations

import subprocess
import sys

import torch

from bali.training.adam import Adam
from support.tolerances import EXACT


def test_steps_are_those_of_torch() -> None:
    generator = torch.Generator().manual_seed(0)
    start, slopes = (torch.randn(2, 3, generator=generator, dtype=torch.float64) for _ in range(2))
    known = start.clone().requires_grad_()
    theirs, ours, values = torch.optim.Adam([known], 0.1, betas=(0.8, 0.95)), Adam(start, 0.1, (0.8, 0.95)), start
    for step in range(20):
        share = 1.0 - step / 40
        theirs.param_groups[0]["lr"] = 0.1 * share
        known.grad = slopes + known.detach().sin()
        theirs.step()
        values = values + ours.step(-(slopes + values.sin()), share)
    torch.testing.assert_close(values, known.detach(), rtol=EXACT, atol=EXACT)


def test_no_fit_of_a_table_imports_the_compiler() -> None:
    code = """
import sys, warnings, numpy as np, bali
warnings.simplefilter("ignore")
x = np.random.default_rng(0).normal(size=(40, 2))
bali.BALIRegressor(max_iter=2, random_state=0).fit(x, x[:, 0]).predict(x)
bali.surrogate(x, x[:, :1])
assert not any(name.startswith(("torch._dynamo", "sympy")) for name in sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
