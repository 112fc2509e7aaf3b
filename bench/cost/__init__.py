"""How far off the profiled step times are: held-out points and errors. `bench/cost_model.py` starts it."""
