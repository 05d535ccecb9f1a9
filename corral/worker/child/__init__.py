"""A child process: started, watched, heard and ended."""
