"""The runtime: a pure coordinator, what a worker does, and two shells that carry it out: simulation and Spark."""
