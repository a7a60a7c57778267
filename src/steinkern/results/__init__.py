"""What comes back from a run, and how it is shown: results, predictions, verdicts, pages and plots."""
