"""What runs inside an instance. Standard library only: its Python may have nothing of Corral."""
