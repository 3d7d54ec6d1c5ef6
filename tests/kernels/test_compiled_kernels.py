"""Fused kernels compile for GPUs; Triton's interpreter does not check this."""

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
    """Bytes of shared memory per case, or the compiler's error.

    The compiler runs in another process, since this one uses the interpreter.
    """
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path_factory.mktemp("triton"))
    command = [sys.executable, "-m", "tests.kernels.compiled_kernels"]
    completed = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert completed.returncode == 0, completed.stderr[-2000:]
    return json.loads(completed.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed (extra: kernels)")
def test_all_kernels_compile_without_a_gpu(shared_bytes):
    errors = {case: result for case, result in shared_bytes.items() if not isinstance(result, int)}
    assert not errors
    limit = 99 * 1024  # the smallest of GPUs since the RTX 30
    assert all(size < limit for size in shared_bytes.values()), shared_bytes


def test_no_fused_kernel_is_left_out():
    compiled = {(module, kernel) for module, kernel, _ in compiled_kernels.cases()}
    for file in FUSED:
        text = file.read_text()
        for kernel in re.findall(r"^(_\w+_kernel) = triton\.jit\(", text, re.MULTILINE):
            assert (f"{file.parent.name}.{file.stem}", kernel) in compiled, f"{file.name}: {kernel}"


@pytest.mark.parametrize("file", FUSED, ids=[f"{file.parent.name}/{file.stem}" for file in FUSED])
def test_the_compiler_can_resolve_the_annotations_of_kernels(file):
    """Triton's compiler (3.2 to 3.9) resolves annotations and refuses foreign globals, for example typing.Any."""
    body = ast.parse(file.read_text()).body
    functions = [node for node in body if isinstance(node, ast.FunctionDef)]
    imports = [node for node in body if isinstance(node, ast.ImportFrom) and node.module == "triton.language"]
    known = {alias.asname or alias.name for node in imports for alias in node.names}
    annotations = {
        function.name: [ast.unparse(argument.annotation) for argument in function.args.args if argument.annotation]
        for function in functions
    }
    kernels = {name: names for name, names in annotations.items() if "tl.constexpr" in names}
    assert kernels
    for name, names in kernels.items():
        assert all(annotation in known or annotation.startswith("tl.") for annotation in names), name
