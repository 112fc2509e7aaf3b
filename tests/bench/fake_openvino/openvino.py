"""Stands in for the library's runtime: tensors are their arrays, properties come from a table."""

from __future__ import annotations

import os
from typing import Any

__version__ = "0.0-fake"


def Tensor(array: Any) -> Any:  # noqa: N802 (the library's name)
    return array


class Core:
    def get_property(self, device: str, name: str) -> str:
        assert device == "CPU"
        return os.environ.get("FAKE_DEFAULT") or {"INFERENCE_PRECISION_HINT": "bf16", "KV_CACHE_PRECISION": "u8"}[name]
