"""How a user's turn may begin; the target writes the rest of it.

Most turns begin with nothing at all: a model that was tuned on conversations then writes a question of its own.
"""

from __future__ import annotations

import random

OPENINGS = (
    "Write a short story about",
    "Write the beginning of a",
    "Write a poem about",
    "Write an email to",
    "Write a short paragraph about",
    "Write a product description for",
    "Write a dialogue between",
    "Write a letter",
    "Write a recipe for",
    "Give me a list of",
    "Give me three tips for",
    "Give me advice on",
    "Explain how",
    "Explain why",
    "Explain the difference between",
    "Explain in simple words what",
    "Describe",
    "What is",
    "What are the main",
    "What is the difference between",
    "What happens when",
    "What should I",
    "Why do",
    "Why is",
    "How do I",
    "How does",
    "How can I improve",
    "How to",
    "Can you help me",
    "Can you explain",
    "Could you suggest",
    "I am planning",
    "I have a problem with",
    "I want to learn",
    "I'm looking for",
    "Tell me about",
    "Tell me a",
    "Summarize",
    "Rewrite the following sentence",
    "Translate",
    "Compare",
    "List the steps",
    "List five",
    "Create a plan for",
    "Create a table",
    "Plan a",
    "Suggest",
    "Imagine you are",
    "You are a",
    "Who was",
    "When did",
    "Where can I find",
    "Which",
    "Is it true that",
    "Solve this problem:",
    "A train",
    "If I have",
    "Calculate",
    "Write a Python function that",
    "Write a program",
    "Write a SQL query",
    "In Python, how",
)
WITHOUT = 0.4


def opening(rng: random.Random) -> str:
    """The first words of a user's turn; often none."""
    return "" if rng.random() < WITHOUT else rng.choice(OPENINGS)
