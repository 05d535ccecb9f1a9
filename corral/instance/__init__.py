"""What runs inside an instance of a function; standard library only: its Python may have no Corral."""
