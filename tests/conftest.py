"""Fixtures for every test package."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The small real model's file: from the cache, else fetched; skips where neither can be had."""
    from engine.models.fetch import FetchError, fetch_model

    try:
        return fetch_model("smollm2-135m")
    except FetchError as error:
        pytest.skip(f"the real model is neither cached nor to be fetched: {error}")
