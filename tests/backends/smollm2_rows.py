"""A few real rows, embedded so that the tests need no network.

GSM8K: the first rows of its training split; Cobbe et al. 2021, github.com/openai/grade-school-math, MIT licence.
HotpotQA: questions of its dev set; Yang et al. 2018, hotpotqa.github.io, CC BY-SA 4.0.
"""
