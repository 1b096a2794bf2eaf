"""The paper's tables and figures, made again at a scale that fits the machine."""
