"""Notices to other servers: deliveries, the addresses they may go to, and their signatures."""
