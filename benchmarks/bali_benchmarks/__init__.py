"""Runs that produce the figures in the documents."""
