"""Coverage-guided fuzzing: inputs that reach new lines of a reader are changed further (atheris)."""
