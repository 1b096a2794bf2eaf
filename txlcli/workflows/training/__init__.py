"""Start, resume, follow and forecast a training."""
