"""A node in virtual time around the real supervisor: hours take milliseconds, and nothing is a matter of luck."""
