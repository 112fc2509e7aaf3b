"""Run checks to the end and report all that fail at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice


def expect(condition: bool, message: str) -> None:
    """`assert` that survives `python -O`."""
    if not condition:
        raise AssertionError(message)


def expect_none(violations: list[str], shown: int = 3) -> None:
    """Fail with the first few of `violations`."""
    more = f" (and {len(violations) - shown} more)" if len(violations) > shown else ""
    expect(not violations, "; ".join(islice(violations, shown)) + more)


def run_checks(subject: str, checks: Mapping[str, Callable[[], None]]) -> tuple[str, ...]:
    """The names of all checks. AssertionError with one line for each that failed, exceptions included."""
    failures = []
    for name, check in checks.items():
        try:
            check()
        except AssertionError as error:
            failures.append(f"{name}: {error}")
        except Exception as error:
            failures.append(f"{name}: raised {type(error).__name__}: {error}")
    if failures:
        lines = "\n".join(f"  - {failure}" for failure in failures)
        raise AssertionError(f"{subject} fails {len(failures)} of {len(checks)} checks:\n{lines}")
    return tuple(checks)
