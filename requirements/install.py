"""Install packages with uv into the environment of this Python, from the package sources of pip's configuration.

    .venv/bin/python requirements/install.py -c requirements/constraints.txt -e ".[lab]"

uv needs a quarter of pip's processor time but does not read pip's settings. This script passes on pip's mirror, folder
of wheels (such as CPU builds of torch) and certificate; uv's environment variables that are already set have priority.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Mapping

# uv's variables for pip's settings. uv separates folders by commas, all other lists by spaces.
VARIABLES = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "trusted-host": "UV_INSECURE_HOST",
    "cert": "SSL_CERT_FILE",
}
SECTIONS = ("global.", "install.", ":env:.")  # later ones have priority


def uv_variables(pip_config: str, environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that give uv pip's settings, without those already in `environment`.

    `pip_config` is the output of `pip config list`.
    """
    settings = dict(line.partition("=")[::2] for line in pip_config.splitlines())
    variables = {}
    for name, variable in VARIABLES.items():
        values = [settings[section + name] for section in SECTIONS if section + name in settings]
        if values and variable not in environment:
            separator = "," if variable == "UV_FIND_LINKS" else " "
            variables[variable] = separator.join(str(ast.literal_eval(values[-1])).split())
    if "UV_INDEX" in variables:  # pip takes the best release of all indexes, uv that of the first index
        variables |= {"UV_INDEX_STRATEGY": environment.get("UV_INDEX_STRATEGY", "unsafe-best-match")}
    return variables


def main() -> int:
    """Run `uv pip install` with the arguments of the command line; returns its exit status."""
    pip_config = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    ).stdout
    command = [sys.executable, "-m", "uv", "pip", "install", "--python", sys.executable, *sys.argv[1:]]
    return subprocess.run(command, env=os.environ | uv_variables(pip_config, os.environ), check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
