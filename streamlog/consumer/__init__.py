"""The reading role: `Consumer` and its settings."""

from streamlog.consumer.consumer import Consumer
from streamlog.consumer.settings import ConsumerSettings

__all__ = ["Consumer", "ConsumerSettings"]
