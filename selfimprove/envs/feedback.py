"""Feedback on an attempt at a problem, verbatim from RISE's released code (docs/rise.md, R3)."""

FAILURE = "The answer is incorrect. Please try again. Here's the question: {question}"
SUCCESS = "Great job! You've successfully answered the question."
