"""Files that processes of one machine share: whole writes, locks, large files; standard library only."""
