"""What judges and improves the program."""
