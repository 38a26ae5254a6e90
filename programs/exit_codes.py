"""How the command `adaptive-rag` ends."""

ANSWERED, ERROR, USAGE, NO_ANSWER = 0, 1, 2, 3
"""Done · error · wrong usage · no checked answer, or the user did not want to go on."""
