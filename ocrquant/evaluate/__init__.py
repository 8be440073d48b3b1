"""What the plan costs in accuracy: held-out pages through every arm, intervals, gate, report and pictures.

Knows how arms are run side by side, how their outputs are judged and how the result is shown. Does not know
how a plan was found or written.
"""
