"""The simulation shell: the coordinator on a virtual clock, with faults from a script or a seed; and its fuzzer."""
