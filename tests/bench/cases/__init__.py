"""What is measured, by what a user does."""
