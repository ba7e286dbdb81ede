"""Assessment by fault injection: which operators the answer depends on, measured on the job itself (paper 001)."""
