"""Learning that goes on: tasks one after the other, which label to buy next, optimisation of functions that cost much."""
