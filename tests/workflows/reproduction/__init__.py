"""Tests of txlcli.reproduction."""
