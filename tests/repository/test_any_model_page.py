"""docs/any_model.md says what is tried, and what `kvviz doctor` prints."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from kvviz.evaluation.command import group
from tests.tiny_models import ARCHITECTURES, MORE_ARCHITECTURES

PAGE = (Path(__file__).parents[2] / "docs" / "any_model.md").read_text()


def part(name: str) -> str:
    return PAGE.partition(f"<!-- {name} -->\n")[2].partition(f"<!-- /{name} -->")[0]


def test_the_architectures_are_those_of_the_trial() -> None:
    tried = {family for family, *_ in {**ARCHITECTURES, **MORE_ARCHITECTURES}.values()}
    assert set(re.findall(r"\w+", part("tried"))) == tried


@pytest.mark.model
def test_the_report_is_what_the_command_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)  # it decides the dtype
    result = CliRunner().invoke(group(), ["doctor", "smollm2-135m", "--method", "clusterkv", "--length", "4096"])
    assert part("doctor").strip("`\n") == result.output.strip()
