"""The cost of one verify forward: points, floors, measurement, report. `bench/engine.py` starts it."""
