"""What is said of an attempt at a problem, in the words of RISE's released code, to the letter (docs/rise.md, R3)."""

FAILURE = "The answer is incorrect. Please try again. Here's the question: {question}"
SUCCESS = "Great job! You've successfully answered the question."
