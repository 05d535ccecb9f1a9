"""Folders as trees of files named by their content: scanned, uploaded, fetched and unpacked."""
