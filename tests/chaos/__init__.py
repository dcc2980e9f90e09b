"""The real stack under seeded faults: two nodes, two engines, Redis, SeaweedFS, a producer; killed, cut, filled."""
