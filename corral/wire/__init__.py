"""Requests and answers of the `/v1` protocol and the run file, shared by server and client."""
