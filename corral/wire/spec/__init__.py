"""What a run is: the file that a user writes, its tables, and the spec that the server keeps."""
