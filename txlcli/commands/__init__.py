"""The commands of txl, one module each: parse, call, show."""
