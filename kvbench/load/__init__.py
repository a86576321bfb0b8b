"""Locust sends the plan. The only package that imports Locust, in a process of its own."""
