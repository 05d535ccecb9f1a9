"""One file for each noun: the methods that read and write its rows. The SQL itself is in `../sql`."""
