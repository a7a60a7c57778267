"""A self-contained HTML page for a run: its settings, its end, its traces, its particles and a table of sites."""
