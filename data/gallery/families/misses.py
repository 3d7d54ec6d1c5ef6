"""Why a method missed."""

from __future__ import annotations

import plotly.graph_objects as go

from families import figure
from kvviz import plots
from notebooks.runs import Runs


@figure("none of them has it", width="page")
def evidence(runs: Runs) -> go.Figure:
    """The tokens that an answer needs, with what full attention loses without each of them."""
    return plots.evidence(runs.diagnoses("misses")["quest"])


@figure("none of them has it")
def loss_stages(runs: Runs) -> go.Figure:
    """Where Quest lost the answer's log-probability: from full attention's to its own, by the stage of its choice."""
    return plots.loss_stages(runs.diagnoses("misses")["quest"])


@figure("none of them has it", width="page")
def loss_by_head(runs: Runs) -> go.Figure:
    """What restoring each head alone brings back; the framed heads bring the answer back together."""
    return plots.loss_by_head(runs.diagnoses("misses")["quest"])
