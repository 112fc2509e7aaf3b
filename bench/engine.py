"""What one verify forward of the bundled engine costs, against the floors of the machine it runs on.

    python bench/engine.py [--model NAME | --random SHAPE] [--device cpu] [--json FILE]
    python bench/engine.py --help

Times the captured verify pieces over batch × tokens per row × context. The floors are measured in the same rounds: how
fast memory can be read (the weights and the cache have to be), and how fast matrices are multiplied. Then two claims:
ragged rows cost what a rectangle of as many tokens costs, and a batch with a small budget a fraction of the full one.
What it does is in `bench/forward/`; this file only starts it.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path


def _make_way() -> None:
    """Let `import engine` find the package and not this file.

    A script that is run by its path has its own folder first in `sys.path`, and this folder has an `engine`, too: this
    file. The project's root takes the folder's place, and if this file was imported as `engine` the package does.
    """
    here = Path(__file__).resolve().parent
    sys.path[:] = [str(here.parent) if Path(path).resolve() == here else path for path in sys.path]
    if __name__ == "engine":
        del sys.modules["engine"]
        importlib.import_module("engine")


_make_way()

if __name__ == "__main__":
    import typer

    from bench.forward.cli import main

    typer.run(main)
