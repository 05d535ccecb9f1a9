"""What an earlier release left behind, and its programs, against this one."""
