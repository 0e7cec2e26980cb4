"""How often the logs of a broker are looked after."""

from __future__ import annotations

from dataclasses import dataclass

from broker.settings.config import BrokerConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSchedule:
    """In seconds: Kafka's `log.retention.check.interval.ms`, `log.flush.offset.checkpoint.interval.ms`, and
    `log.flush.start.offset.checkpoint.interval.ms`. Nothing comes oftener than each of the log manager's ticks."""

    retention_s: float = 300.0
    recovery_points_s: float = 60.0
    log_starts_s: float = 60.0

    @classmethod
    def of(cls, config: BrokerConfig) -> LogSchedule:
        return cls(
            retention_s=config.log_retention_check_interval_ms / 1000,
            recovery_points_s=config.log_flush_offset_checkpoint_interval_ms / 1000,
            log_starts_s=config.log_flush_start_offset_checkpoint_interval_ms / 1000,
        )


DEFAULT_SCHEDULE = LogSchedule()
