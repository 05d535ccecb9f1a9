"""Notices: made from events, and sent."""
