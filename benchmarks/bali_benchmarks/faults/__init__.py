"""Faults on purpose: damaged tables, killed commands, tables of a few rows. Nothing may go wrong in silence."""
