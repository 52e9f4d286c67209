"""What server, export and load tests ask of the operating system.

None of them may import another, so it is below all three.
"""
