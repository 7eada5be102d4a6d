"""Who is there: announcements, membership, and the drivers that carry them."""
