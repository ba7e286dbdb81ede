"""The runtime: what decides, what carries out, what works on a node, what is told; and its edges, real and drawn."""
