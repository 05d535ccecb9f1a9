"""One file for each noun: the statements that read and write its rows."""
