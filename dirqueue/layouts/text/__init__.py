"""The text layout: a queue in one file that a person can read and edit, as textqueue 1.1 has it."""
