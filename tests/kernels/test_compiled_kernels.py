"""Fused kernels compile for GPUs, which Triton's interpreter does not show."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kernels import compiled_kernels

ROOT = Path(__file__).parents[2]
FUSED = sorted((ROOT / "kernels" / "kvviz_kernels").glob("*/fused*.py"))


@pytest.fixture(scope="module")
def shared_bytes(tmp_path_factory):
    """Of each case the bytes of shared memory that it takes, or what the compiler said.

    The compiler runs in a process of its own, since the interpreter is on in this one.
    """
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path_factory.mktemp("triton"))
    command = [sys.executable, "-m", "tests.kernels.compiled_kernels"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed (extra: kernels)")
def test_every_kernel_compiles_for_a_gpu_that_is_not_here(shared_bytes):
    refused = {case: said for case, said in shared_bytes.items() if not isinstance(said, int)}
    assert not refused
    most = 99 * 1024  # the least that a GPU since the RTX 30 has
    assert all(taken < most for taken in shared_bytes.values()), shared_bytes


def test_no_fused_kernel_is_left_out():
    compiled = {(module, kernel) for module, kernel, _ in compiled_kernels.cases()}
    for file in FUSED:
        text = file.read_text()
        for kernel in re.findall(r"^(_\w+_kernel) = triton\.jit\(", text, re.MULTILINE):
            assert (f"{file.parent.name}.{file.stem}", kernel) in compiled, f"{file.name}: {kernel}"


@pytest.mark.parametrize("file", FUSED, ids=[f"{file.parent.name}/{file.stem}" for file in FUSED])
def test_annotations_of_kernels_are_names_that_the_compiler_reads(file):
    """Triton's compiler (3.2 to 3.9) looks annotations up and refuses globals that are not its own, typing.Any say."""
    body = ast.parse(file.read_text()).body
    functions = [node for node in body if isinstance(node, ast.FunctionDef)]
    imports = [node for node in body if isinstance(node, ast.ImportFrom) and node.module == "triton.language"]
    known = {alias.asname or alias.name for node in imports for alias in node.names}
    annotations = {
        function.name: [ast.unparse(argument.annotation) for argument in function.args.args if argument.annotation]
        for function in functions
    }
    kernels = {name: found for name, found in annotations.items() if "tl.constexpr" in found}
    assert kernels
    for name, found in kernels.items():
        assert all(annotation in known or annotation.startswith("tl.") for annotation in found), name
