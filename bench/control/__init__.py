"""The controller's own cost: a batch without a model, arms, figures. `bench/controller_overhead.py` starts it."""
