"""The command `bali-benchmarks`: measurements, the paper's experiments, and the data sets they need."""

from __future__ import annotations

from bali_benchmarks.commands.comparisons import bench
from bali_benchmarks.commands.data import data
from bali_benchmarks.commands.demo import demo
from bali_benchmarks.commands.faults import faults
from bali_benchmarks.commands.learning import learning
from bali_benchmarks.commands.likelihoods import likelihoods
from bali_benchmarks.commands.networks import networks
from bali_benchmarks.commands.pretrained import pretrained
from bali_benchmarks.commands.reproduce import reproduce

app = bench
app.command()(demo)
app.command()(reproduce)
app.command()(faults)
app.command()(networks)
app.command()(learning)
app.command()(pretrained)
app.command()(likelihoods)
app.add_typer(data, name="data")
