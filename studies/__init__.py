"""The experiments of the paper, and one of images: `python -m studies NAME`."""
