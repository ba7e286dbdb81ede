"""What works on a node: one task, one epoch at a time, on blocks and versions of state."""
