-- 岚台的主要表。

CREATE TABLE devices (
    device_id   VARCHAR(32) PRIMARY KEY,
    serial      CHAR(16)    NOT NULL UNIQUE,
    model       VARCHAR(16) NOT NULL,
    firmware    VARCHAR(16) NOT NULL,
    status      VARCHAR(16) NOT NULL DEFAULT 'unknown',
    deleted_at  TIMESTAMP
);

CREATE TABLE telemetry_raw (
    device_id   VARCHAR(32) NOT NULL,
    point_key   VARCHAR(64) NOT NULL,
    recorded_at TIMESTAMP   NOT NULL,
    value       DOUBLE PRECISION,
    quality     SMALLINT    NOT NULL DEFAULT 0,
    PRIMARY KEY (device_id, point_key, recorded_at)
);

CREATE TABLE alarm_records (
    alarm_id    BIGINT PRIMARY KEY,
    device_id   VARCHAR(32) NOT NULL,
    level       SMALLINT    NOT NULL,
    raised_at   TIMESTAMP   NOT NULL,
    closed_at   TIMESTAMP
);

CREATE INDEX alarm_records_by_device ON alarm_records (device_id, raised_at);
