"""Blind comparison of two sets of answers: a page for raters, and the count of their votes."""
