"""Hosts: how they join, what they report and what is declared of them."""
