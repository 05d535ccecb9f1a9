"""What runs inside an instance. Standard library only: it is loaded into Pythons that have nothing of Corral."""
