"""Start, resume and forecast a training run."""
