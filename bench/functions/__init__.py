"""Remote functions beside their rivals."""
