"""What carries out: the one shell between what decides and the ports (clock, nodes, runner, files)."""
