"""What to replicate, what to recover first, and what failures leave; no Spark: python examples/plan_replicas.py"""

import holdfast
from holdfast.topology import topology_from

topology = topology_from(
    {
        "operators": [
            {"name": "orders", "parallelism": 4},
            {"name": "payments", "parallelism": 2},
            {"name": "match", "parallelism": 4, "inputs": "correlated", "stateful": True},
            {"name": "fraud", "parallelism": 1},
        ],
        "streams": [
            {"from": "orders", "to": "match", "partitioning": "one-to-one"},
            {"from": "payments", "to": "match", "partitioning": "full"},
            {"from": "match", "to": "fraud", "partitioning": "merge"},
        ],
    }
)
left = holdfast.output_fidelity(topology, topology.tasks_of("match/0,match/1")).fidelity
print(f"without match/0 and match/1: fidelity {left:.3f}")
for budget in (4, 6, 8):
    plan = holdfast.plan(topology, budget)
    print(f"budget {budget}: fidelity {plan.fidelity:.3f}, replicas {' '.join(map(str, plan.replicas))}")
steps = holdfast.schedule(topology, "all", arrivals=[5, 3, 3], algorithm="incremental").steps
for number, step in enumerate(steps, 1):
    print(f"arrival {number}: recover {' '.join(map(str, step.recover))}, fidelity {step.fidelity:.3f}")
