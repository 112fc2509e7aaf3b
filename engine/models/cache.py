"""Where downloaded files live. Standard library only."""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir() -> Path:
    """`$ADAPTIVE_CACHE`, else `$XDG_CACHE_HOME/adaptive-speculation`, else `~/.cache/adaptive-speculation`."""
    if own := os.environ.get("ADAPTIVE_CACHE"):
        return Path(own).expanduser()
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return Path(shared).expanduser() / "adaptive-speculation"
    return Path.home() / ".cache" / "adaptive-speculation"


def models_dir() -> Path:
    """The folder of fetched model files (not created here)."""
    return cache_dir() / "models"
