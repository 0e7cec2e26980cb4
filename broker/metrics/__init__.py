"""The metrics page, part by part, under the names that the JMX exporter gives to Kafka's metrics."""
