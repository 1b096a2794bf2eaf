"""The paper's tables and figures, reproduced at one of three scales."""
