"""Pico: the small document model that ships with the package, and the program that trains it."""
