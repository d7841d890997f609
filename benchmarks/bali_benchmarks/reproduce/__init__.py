"""The paper's experiments, run again from one table of settings."""
