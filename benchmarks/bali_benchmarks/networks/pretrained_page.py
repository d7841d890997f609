"""docs/pretrained.md, from the lines of `bali-benchmarks pretrained`."""

from __future__ import annotations

from collections.abc import Sequence

from bali_benchmarks.networks.network_tasks import TASKS
from bali_benchmarks.networks.networks_bars import SHOWN
from bali_benchmarks.networks.networks_summary import of
from bali_benchmarks.performance.measurement import Line, paragraph, table

_TITLES = {
    "network": "the network alone",
    "bali-last": "`bali.fit`, last layer",
    "bali-all": "`bali.fit`, all layers",
    "laplace-last": "laplace-torch, last layer",
    "laplace-all": "laplace-torch, all layers",
}
_COLUMNS = SHOWN | {
    "seconds": "s, posterior",
    "prediction_seconds": "s, predictions",
}
_CODE = """```python
fitted = bali.fit(network, (x, y), bali.likelihoods.Categorical(), epochs=0)  # all layers
fitted = bali.fit(network, (x, y), bali.likelihoods.Categorical(), only=["head"], epochs=0)  # the last one
```"""


def to_markdown(lines: Sequence[Line]) -> str:
    text = ["# A posterior around a pretrained network", "", *_introduction(lines)]
    for name, task in TASKS.items():
        own = [line for line in lines if line["task"] == name]
        if own:
            text += ["", f"## {task.title}", "", *_section(own, name)]
    return "\n".join(text) + "\n"


def _introduction(lines: Sequence[Line]) -> list[str]:
    threads = ", ".join(map(str, sorted({line["threads"] for line in lines}))) or "none yet"
    return [
        *paragraph(
            "A network that is trained already can get a posterior in one pass over its training data. Its weights stay,",
            "and are the posterior's mean:",
        ),
        "",
        _CODE,
        "",
        *paragraph(
            "Beside it, laplace-torch (Daxberger and others 2021) on the same networks of Adam's (rate 10⁻³, stopped by the",
            "validation rows): Kronecker factors, the prior's precision by the marginal likelihood, as it proposes.",
            "`bali.fit` fits the width, and temperature or noise, on the validation rows; laplace-torch's noise of a",
            "regression is that of the validation rows, too. Its last layer is linearised and has the probit for class",
            "probabilities; of all layers, classes are those of networks with drawn weights, as the linearised form takes",
            "a Jacobian of every weight for each row. Written by `bali-benchmarks pretrained`. Regressions are scored in",
            f"standardised units; AUROC as on [Networks of many kinds](networks.md). Threads: {threads}.",
        ),
    ]


def _section(lines: Sequence[Line], task: str) -> list[str]:
    keys = [key for key in _COLUMNS if any(key in line for line in lines)]
    body = []
    for method, title in _TITLES.items():
        cells = [of(lines, task, method, key) for key in keys]
        if cells[0] is not None:
            texts = ["–" if c is None else c.text(1 if "seconds" in k else 4) for k, c in zip(keys, cells, strict=True)]
            body.append((title, *texts))
    seeds = len({line["seed"] for line in lines})
    return [*table(("", *(_COLUMNS[key] for key in keys)), body), "", f"Seeds: {seeds}."]
