"""Brokers: Kafka's wire protocol over the topics of a root, for clients that nobody here wrote."""
