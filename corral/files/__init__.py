"""What processes of one machine share on disk: whole writes, locks, large files. Standard library only."""
