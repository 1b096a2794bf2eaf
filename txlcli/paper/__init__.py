"""Published numbers and the paper's metrics: data and arithmetic only."""
