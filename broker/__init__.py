"""One broker process; `python -m broker --config FILE` runs it."""
