"""Other toolkits beside our own stages: their search, their rounding, their recipes.

Knows how each of them is called and what it gives back. They are optional: nothing here is imported before it
is asked for.
"""
