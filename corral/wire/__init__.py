"""Requests and answers of `/v1` and the run file, for server and client; they validate and do no more."""
