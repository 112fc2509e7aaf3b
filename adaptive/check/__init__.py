"""Conformance suites for whoever writes a policy or an engine: one call, one readable list of what is wrong.

>>> from policies import Fixed
>>> len(check_policy(Fixed(2))) > 4
True
"""

from adaptive.check.engines import check_engine
from adaptive.check.policies import check_policy
from adaptive.check.toy import ToyEngine

__all__ = ["ToyEngine", "check_engine", "check_policy"]
