"""The drawn edges of the driver: a virtual clock, nodes that vanish, a disk that forgets; an auditor, and a fuzzer."""
