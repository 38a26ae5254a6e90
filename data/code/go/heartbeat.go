// Package gateway 是岚盒里的常驻进程。
package gateway

import (
	"sync"
	"time"
)

// HeartbeatMonitor 判断设备是否离线：3.2 为 180 秒，4.0 为 60 秒。
type HeartbeatMonitor struct {
	mu       sync.Mutex
	lastSeen map[string]time.Time
	timeout  time.Duration
}

// NewHeartbeatMonitor 按固件版本选择超时。
func NewHeartbeatMonitor(firmware string) *HeartbeatMonitor {
	timeout := 180 * time.Second
	if firmware >= "4.0" {
		timeout = 60 * time.Second
	}
	return &HeartbeatMonitor{lastSeen: map[string]time.Time{}, timeout: timeout}
}

// Beat 记录一次心跳。
func (m *HeartbeatMonitor) Beat(device string, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lastSeen[device] = now
}

// IsOffline 超过时限没有心跳时为真。
func (m *HeartbeatMonitor) IsOffline(device string, now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	seen, known := m.lastSeen[device]
	return !known || now.Sub(seen) > m.timeout
}
