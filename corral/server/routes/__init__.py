"""The routes of `/v1`, a file for each noun."""
