"""Find the best launch configurations of the fused kernels on this GPU, and store them in the repository.

    python kernels/tune.py [--only attention ...]

Each configuration goes to kernels/kvviz_kernels/tuned/<gpu>.json, which the kernels read.
"""

from __future__ import annotations

import argparse
import logging
import sys

import torch
from benchmarks import benchmarks
from kvviz_kernels import has_triton


def main() -> None:
    """Check each benchmark's results, then tune its kernels."""
    modules = {name: module for name, module in benchmarks().items() if hasattr(module, "tune")}
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", nargs="+", choices=modules, default=[*modules], help="which to tune (default: all)")
    options = parser.parse_args()
    if not torch.cuda.is_available() or not has_triton():
        missing = "GPU" if has_triton() else "Triton"
        sys.exit(f"tune.py: got no {missing}; wanted an NVIDIA GPU and Triton: configurations are measured")
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    device = torch.device("cuda")
    print(torch.cuda.get_device_name(device))
    for name in options.only:
        modules[name].check(device)
        print(f"{name}: {modules[name].tune(device)}", flush=True)


if __name__ == "__main__":
    main()
