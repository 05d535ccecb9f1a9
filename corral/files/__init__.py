"""Files that processes share: whole writes, locks, large files, and objects in a bucket."""
