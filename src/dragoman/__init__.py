"""Dragoman trains neural machine translation models on one machine or many, and explains what happened."""

__version__ = "0.1.0"
