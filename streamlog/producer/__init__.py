"""The producer: records in, committed appends out."""

from streamlog.producer.ack import Ack, BatchAck, BatchMetadata
from streamlog.producer.producer import Producer
from streamlog.producer.settings import ProducerSettings

__all__ = ["Ack", "BatchAck", "BatchMetadata", "Producer", "ProducerSettings"]
