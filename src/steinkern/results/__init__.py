"""The results of runs and their display: particles, predictions, verdicts, reports and plots."""
