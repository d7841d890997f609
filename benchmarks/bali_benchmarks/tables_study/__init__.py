"""Default estimators on tables, beside what a user would otherwise reach for."""
