-- 每天 03:00 清理过期数据：标准版 90 天，企业版 730 天。

DELETE FROM telemetry_raw
WHERE recorded_at < CURRENT_TIMESTAMP - INTERVAL '90' DAY
  AND device_id IN (SELECT device_id FROM devices WHERE deleted_at IS NULL);

-- 每台设备最近一次告警
SELECT device_id, MAX(raised_at) AS last_raised
FROM alarm_records
GROUP BY device_id;

-- 软删除超过 30 天的设备，到期彻底删除
DELETE FROM devices WHERE deleted_at < CURRENT_TIMESTAMP - INTERVAL '30' DAY;
