"""What is told: events as they happened, recoveries as a story, outputs as they stand."""
