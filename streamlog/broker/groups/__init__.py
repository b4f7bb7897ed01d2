"""Consumer groups for Kafka's clients, by the classic protocol; their state is in the group's table."""
